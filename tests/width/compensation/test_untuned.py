"""Compensation without tuning is least squares; with extreme activations, its weights stay finite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases.width.plan_width import CPU, IMAGES, Joined, narrowed, vit
from torch import Tensor, nn

from prunerecover import Budget, apply_plan, plan_width
from prunerecover.calibration.samples import split_batches
from prunerecover.calibration.steps import FEWEST_SAMPLES
from prunerecover.session.pruned_output import judge_of
from prunerecover.width import tuning
from prunerecover.width.tuning import numbers_in_memory, tuned_tensors


def test_least_squares_stay_where_every_epoch_is_worse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prunerecover.width.tuning.RATE", 100.0)
    model, edits, tensors, samples = narrowed(vit)
    assert untouched(tensors, tuned_tensors(edits, tensors, samples, judge_of(model, samples)))


def test_nothing_is_learnt_of_few_samples() -> None:
    model, edits, tensors, _ = narrowed(vit)
    few = split_batches([IMAGES[: FEWEST_SAMPLES - 1]], CPU)
    assert untouched(tensors, tuned_tensors(edits, tensors, few, judge_of(model, few)))


def test_nothing_is_learnt_of_more_numbers_than_memory_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    model, edits, tensors, samples = narrowed(vit)
    network = judge_of(model, samples).pruned(edits, tensors)
    weights = sum(network.get_parameter(key.partition(".")[2]).numel() for key in tensors)
    needed = numbers_in_memory(network, edits, tensors)
    assert needed > weights + 4 * sum(value[:, :-1].numel() for value in tensors.values())
    monkeypatch.setattr(tuning, "MOST_NUMBERS", needed - 1)
    assert untouched(tensors, tuned_tensors(edits, tensors, samples, judge_of(model, samples)))


def untouched(tensors: dict[str, Tensor], found: dict[str, Tensor]) -> bool:
    return found.keys() == tensors.keys() and all(found[key] is value for key, value in tensors.items())


class Rounds(torch.autograd.Function):
    """An operation without a backward pass."""

    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        """Round."""
        return (8 * x).round() / 8


def in_place(found: Tensor) -> Tensor:
    """Overwrite a tensor of the backward pass: the gradient of an exponential is its own output."""
    return found.exp().add_(1)


def root(found: Tensor) -> Tensor:
    """Return finite outputs without finite gradients."""
    return found + (found - found).abs().sqrt()


class Changed(Joined):
    """A network with a function of its output."""

    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        """Change the output."""
        return self.change(super().forward(x))


class Detections(Joined):
    """The second dimension follows the number of detections."""

    def forward(self, x: Tensor) -> Tensor:
        """Return as many logits more as a weight reads."""
        found = super().forward(x)
        return torch.cat([found, found.new_zeros(len(x), self.head.weight.shape[1])], 1)


CHANGES = {"detached": Tensor.detach, "in place": in_place, "rounds": Rounds.apply, "root": root}


@pytest.mark.parametrize("name", [*CHANGES, "detections"])
def test_nothing_is_learnt_where_the_output_does_not_say_how(name: str) -> None:
    """Or where it cannot be compared."""
    model, edits, tensors, samples = narrowed(Joined)
    other = Changed(CHANGES[name]) if name in CHANGES else Detections()
    other.eval().load_state_dict(model.state_dict())
    judge = judge_of(other, samples)
    assert untouched(tensors, tuned_tensors(edits, tensors, samples, judge))


NUMBERS: dict[str, Callable[[Tensor], Any]] = {
    "heads": lambda found: (found.argmax(1), found),
    "classes": lambda found: found.argmax(1),
    "tuple of classes": lambda found: (found.argmax(1), found.argmax(1)),
}


@pytest.mark.parametrize("change", NUMBERS.values(), ids=NUMBERS)
def test_outputs_of_whole_numbers_are_planned_for(change: Callable[[Tensor], Any]) -> None:
    """Class numbers have no order: outputs cannot be compared, and least squares remain."""

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        return Joined.forward(model, batch).square().mean()  # type: ignore[arg-type]

    torch.manual_seed(0)
    model = Changed(change).eval()
    plan = plan_width(model, Budget(params=0.3), batches=list(IMAGES.split(8)), loss=loss)
    assert plan.tensors
    apply_plan(model, plan)


X = torch.randn(32, 4, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(32) % 3
SMALL, LARGE = 1e-20, 1e15
SIZES: dict[str, list[float]] = {
    "tiny": [SMALL],
    "huge": [LARGE],
    "beyond single precision": [1e20, 1.0],
    "tiny, ordinary and huge": [SMALL, 1.0, LARGE],
}


def net(sizes: list[float]) -> nn.Sequential:
    """Return a network with hidden activations of these sizes in turn, rescaled by the next layer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 3))
    factors = torch.tensor(sizes).repeat(12)[:12]
    with torch.no_grad():
        model[0].weight.mul_(factors[:, None])
        model[0].bias.mul_(factors)
        model[2].weight.div_(factors)
    return model


def dead() -> nn.Sequential:
    model = net([1.0])
    nn.init.constant_(model[0].bias, -1e3)
    return model


def narrowed_in(model: nn.Module, dtype: torch.dtype) -> nn.Module:
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
    assert_finite(narrowed_in(net(SIZES[name]), dtype), dtype)


@DTYPES
def test_dead_units_leave_finite_weights_and_the_same_output(dtype: torch.dtype) -> None:
    before = dead().to(dtype)(X.to(dtype))
    model = narrowed_in(dead(), dtype)
    assert_finite(model, dtype)
    torch.testing.assert_close(model(X.to(dtype)), before)


@pytest.mark.parametrize("value", [0.0, 1.0, 1e15])
def test_constant_activations_become_part_of_the_bias(value: float) -> None:
    def constant() -> nn.Sequential:
        model = net([1.0])
        with torch.no_grad():
            model[0].weight.zero_()
            model[0].bias.fill_(value)
            model[2].weight.div_(max(value, 1.0))
        return model

    before = constant()(X)
    model = narrowed_in(constant(), torch.float32)
    torch.testing.assert_close(model(X), before, rtol=1e-3, atol=1e-3)
