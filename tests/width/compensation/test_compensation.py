"""Refitted readers follow least squares, and where the kept units suffice, the output is exact."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from cases.engine import unchanged
from cases.width.plan_width import cnn, vit
from sklearn.linear_model import Ridge
from torch import Tensor, nn

from prunerecover import Budget, Plan, apply_plan, find_groups, plan_width
from prunerecover.calibration.samples import split_batches
from prunerecover.model.batches import ModelInputs
from prunerecover.plan.edits import Narrow
from prunerecover.session.pruned_output import judge_of
from prunerecover.session.session import Session
from prunerecover.surgery.provenance import plan_for
from prunerecover.width.allocator import WidthAllocator
from prunerecover.width.arguments import WidthRule
from prunerecover.width.compensation import fit_compensation, fitted_tensors, with_compensation
from prunerecover.width.groups.narrow_edits import narrow_edits
from prunerecover.width.tuning import tuned_tensors

IMAGES = torch.randn(32, 3, 16, 16, generator=torch.Generator().manual_seed(3))
LABELS = torch.arange(32) % 4


def twice(linear: Any, number: int, other: int, factor: float) -> None:
    """Make an output of a layer a multiple of another."""
    with torch.no_grad():
        linear.weight[number] = factor * linear.weight[other]
        linear.bias[number] = factor * linear.bias[other]


def edits_for(model: nn.Module, example: Tensor, removed: dict[str, list[int]]) -> tuple[Narrow, ...]:
    groups = find_groups(model, example).groups
    return narrow_edits(groups, {name: torch.tensor(units) for name, units in removed.items()})


def compensated_plan(model: nn.Module, example: Tensor, removed: dict[str, list[int]], batches: list[Tensor]) -> Plan:
    edits = edits_for(model, example, removed)
    found = fit_compensation(model, edits, [ModelInputs((batch,)) for batch in batches])
    done, tensors = with_compensation(edits, found)
    return plan_for(model, done, method="test", tensors=tensors, example=ModelInputs((example[:1],)))


@pytest.fixture(scope="module")
def plan() -> Plan:
    """Return a plan of 30% for `cnn()`."""
    return plan_width(cnn(), Budget(macs=0.3), batches=[(IMAGES, LABELS)])


class Both(nn.Module):
    """Two groups concatenated for their reader."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(6, 5), nn.Linear(6, 7), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.cat([self.first(x).relu(), self.second(x).relu()], -1))


def convolutions(*last: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), *last)


def linears() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))


X, SMALL = torch.randn(64, 6, generator=torch.Generator().manual_seed(0)), IMAGES[:, :, :9, :9]
REDUNDANT: dict[str, tuple[Callable[[], nn.Module], Tensor, dict[str, dict[int, int]]]] = {  # removed units, by a copy
    "convolution": (lambda: convolutions(nn.Conv2d(8, 4, 3)), SMALL, {"0": {5: 2}}),
    "flattened": (lambda: convolutions(nn.Flatten(), nn.Linear(8 * 49, 4)), SMALL, {"0": {5: 2}}),
    "two at once": (linears, X, {"0": {5: 2}, "2": {1: 6, 5: 3}}),
    "concatenated": (Both, X, {"first": {1: 3}, "second": {0: 6}}),
}


@pytest.mark.parametrize("name", REDUNDANT)
def test_redundant_units_cost_nothing(name: str) -> None:
    """A removed unit that is a positive multiple of another, through a ReLU, is compensated exactly."""
    torch.manual_seed(0)
    make, x, removed = REDUNDANT[name]
    net = make()
    for layer, units in removed.items():
        for unit, other in units.items():
            twice(net.get_submodule(layer), unit, other, 0.5 + unit)
    expected = net(x)
    apply_plan(net, compensated_plan(net, x, {layer: [*units] for layer, units in removed.items()}, [x]))
    torch.testing.assert_close(net(x), expected, rtol=1e-2, atol=2e-2)  # the ridge shrinks a little


def test_prediction_is_ridge_regression() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    x = torch.randn(200, 6)
    (found,) = fit_compensation(net, edits_for(net, x, {"0": [1, 4]}), [ModelInputs((part,)) for part in x.split(60)])
    hidden = net[1](net[0](x)).detach().double().numpy()
    kept, gone = [0, 2, 3, 5, 6, 7], [1, 4]
    strength = 1e-3 + 0.1 * len(kept) / len(x)
    alpha = strength * np.cov(hidden[:, kept], rowvar=False, bias=True).diagonal().mean() * len(x)
    oracle = Ridge(alpha=alpha).fit(hidden[:, kept], hidden[:, gone])
    np.testing.assert_allclose(found["2.weight"][:, :-1], oracle.coef_, atol=1e-4)
    np.testing.assert_allclose(found["2.weight"][:, -1], oracle.intercept_, atol=1e-4)


@pytest.mark.parametrize("make", [Both, cnn, vit], ids=["concatenation", "padded shortcuts", "heads"])
def test_moments_that_a_planner_keeps_give_what_the_edits_alone_do(make: Any) -> None:
    """Moments are stored by group; edits name shifted ranges, which are traced back."""
    torch.manual_seed(0)
    model = make()
    x = torch.randn(64, 6) if make is Both else IMAGES
    batches = [(x, torch.arange(len(x)) % 3)]
    planner = WidthAllocator(Session(model, batches))
    plan = planner.decided(Budget(params=0.3), WidthRule(allocation="uniform"))  # before they are tuned
    narrowing = [edit for edit in plan.edits if isinstance(edit, Narrow)]
    found = fit_compensation(model, narrowing, split_batches([x], x.device).fit)
    assert sum(map(len, found)) == len(plan.tensors) > 0
    for edit, values in zip(narrowing, found, strict=True):
        for key in edit.tensors:
            assert torch.equal(plan.tensors[key], values[key.partition(".")[2]])


@pytest.mark.slow
def test_refitted_plan_is_the_plan_of_the_other_weights(plan: Plan) -> None:
    """For the same units, on another model of the same structure."""
    batches = [(IMAGES, LABELS)]
    other, by_hand = cnn(seed=5), cnn(seed=5)
    with pytest.raises(ValueError, match="Pass refit=batches to fit them to this model"):
        apply_plan(other, plan)
    apply_plan(other, plan, refit=batches)
    narrowing = [edit for edit in plan.edits if isinstance(edit, Narrow)]
    samples = split_batches([IMAGES], IMAGES.device)
    fitted = fitted_tensors(by_hand, narrowing, samples.whole)
    tensors = tuned_tensors(plan.edits, fitted, samples, judge_of(by_hand, samples))
    source = plan.source.model_copy(update={"weights": None})
    apply_plan(by_hand, plan.model_copy(update={"source": source}).with_tensors(tensors))
    torch.testing.assert_close(other(IMAGES), by_hand(IMAGES), rtol=1e-4, atol=1e-4)


def test_tensors_that_do_not_fit_are_refused(plan: Plan) -> None:
    model = cnn()
    other_shape = plan.with_tensors({key: value[:, 1:] for key, value in plan.tensors.items()})
    number = next(i for i, edit in enumerate(plan.edits) if isinstance(edit, Narrow))
    edits = list(plan.edits)
    edits[number] = edits[number].model_copy(update={"group": edits[number].group[:1]})
    outside = plan.model_copy(update={"edits": tuple(edits)}).with_tensors(plan.tensors)
    for wrong, message in (
        (other_shape, "Expected the tensor for '.*weight' to say what it takes over from 'conv1'"),
        (outside, r"'layer1.0.conv1.weight' is not among them. Was the plan edited\?"),
    ):
        with unchanged(model), pytest.raises(ValueError, match=message):
            apply_plan(model, wrong)


def test_unknown_replacement() -> None:
    with pytest.raises(ValueError, match="Expected replace among calibrated, zero, but got 'identity'"):
        plan_width(cnn(), Budget(macs=0.1), batches=[(IMAGES, LABELS)], replace="identity")  # type: ignore[arg-type]


class Sums(nn.Module):
    """Layer with a bias between a sum and an addition to the same sum."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(12, 32), nn.Linear(32, 32), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.last(x + self.inner(input=x).relu())


def test_reader_that_makes_units_of_its_own_group() -> None:
    """The bias receives the constant and is cut; and layers may be called by keyword."""
    torch.manual_seed(0)
    model, batches = Sums(), [(torch.randn(64, 12), torch.arange(64) % 4)]
    apply_plan(model, plan_width(model, Budget(macs=0.3), batches=batches))
    assert model.inner.bias.shape == model.first.bias.shape == (model.last.in_features,)


def test_one_sample_says_nothing_about_the_rest() -> None:
    """Without variance, only the constant is compensated."""
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), torch.randn(1, 6)
    expected = net(x)
    apply_plan(net, compensated_plan(net, x, {"0": [1, 5]}, [x]))
    torch.testing.assert_close(net(x), expected)
