"""Compensation of activations that vanish, repeat each other or are of extreme sizes leaves finite weights."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from prunerecover import Budget, apply_plan, plan_width

X = torch.randn(32, 4, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(32) % 3
SMALL, LARGE = 1e-20, 1e15
SIZES: dict[str, list[float]] = {
    "ordinary": [1.0],
    "tiny": [SMALL],
    "huge": [LARGE],
    "tiny and ordinary": [SMALL, 1.0],
    "huge and ordinary": [LARGE, 1.0],
    "tiny and huge": [SMALL, LARGE],
    "beyond single precision": [1e20, 1.0],
    "tiny, ordinary and huge": [SMALL, 1.0, LARGE],
}


def net(sizes: list[float], units: int = 12) -> nn.Sequential:
    """Hidden activations of these sizes in turn, which the next layer reads at their own size."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, units), nn.ReLU(), nn.Linear(units, 3))
    factors = torch.tensor(sizes).repeat(units)[:units]
    with torch.no_grad():
        model[0].weight.mul_(factors[:, None])
        model[0].bias.mul_(factors)
        model[2].weight.div_(factors)
    return model


def dead() -> nn.Sequential:
    model = net([1.0])
    nn.init.constant_(model[0].bias, -1e3)
    return model


def repeated() -> nn.Sequential:
    """Two units are identical, and no others are left once the plan is applied."""
    model = net([1.0], units=4)
    with torch.no_grad():
        model[0].weight.copy_(model[0].weight[:1].expand(4, -1))
        model[0].bias.copy_(model[0].bias[:1].expand(4))
    return model


def narrowed(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    model.to(dtype)
    plan = plan_width(model, Budget(macs=0.5), batches=[(X.to(dtype), LABELS)])
    assert plan.edits
    assert all(tensor.isfinite().all() for tensor in plan.tensors.values())
    apply_plan(model, plan)
    return model


def assert_finite(model: nn.Module, dtype: torch.dtype) -> None:
    tensors: list[Tensor] = [*model.parameters(), model(X.to(dtype))]
    assert all(tensor.dtype == dtype and bool(tensor.isfinite().all()) for tensor in tensors)


DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


@DTYPES
@pytest.mark.parametrize("name", SIZES)
def test_activations_of_any_size_leave_finite_weights(name: str, dtype: torch.dtype) -> None:
    assert_finite(narrowed(net(SIZES[name]), dtype), dtype)


@DTYPES
def test_dead_units_leave_finite_weights_and_the_same_output(dtype: torch.dtype) -> None:
    before = dead().to(dtype)(X.to(dtype))
    model = narrowed(dead(), dtype)
    assert_finite(model, dtype)
    torch.testing.assert_close(model(X.to(dtype)), before)


@DTYPES
def test_identical_units_take_over_for_each_other(dtype: torch.dtype) -> None:
    before = repeated().to(dtype)(X.to(dtype))
    model = narrowed(repeated(), dtype)
    assert_finite(model, dtype)
    tolerance = 0.02 if dtype == torch.float32 else 0.05  # the ridge shrinks a little, and bfloat16 has 8 bits
    torch.testing.assert_close(model(X.to(dtype)), before, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("value", [0.0, 1e-20, 1.0, 3.3e7, 1e15])
def test_constant_activations_become_part_of_the_bias(value: float) -> None:
    def constant() -> nn.Sequential:
        model = net([1.0])
        with torch.no_grad():
            model[0].weight.zero_()
            model[0].bias.fill_(value)
            model[2].weight.div_(max(value, 1.0))
        return model

    before = constant()(X)
    model = narrowed(constant(), torch.float32)
    torch.testing.assert_close(model(X), before, rtol=1e-3, atol=1e-3)
