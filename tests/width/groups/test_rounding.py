"""Widths for hardware: the size of a group is a multiple of `round_to`, and budgets are met all the same."""

from __future__ import annotations

import itertools
from itertools import pairwise
from typing import Any

import pytest
import torch
from cases.models.tiny import tiny_llama
from cases.sampling import one_in
from cases.width.plan_width import cnn, labelled_batches, removed_share, vit
from torch import nn

from prunerecover import Budget, Plan, apply_plan, plan_width
from prunerecover.plan.groups import Group
from prunerecover.session.session import Session
from prunerecover.width.allocator import WidthAllocator
from prunerecover.width.arguments import WidthRule
from prunerecover.width.groups.rounding import rounded

IDS = torch.randint(3, 61, (8, 9), generator=torch.Generator().manual_seed(0))
TEXT = [{"input_ids": IDS, "labels": IDS}]
QUICK: dict[str, Any] = {"importance": "magnitude", "replace": "zero"}
ALLOCATIONS = ("per_cost", "uniform", "global", "fair_pruner")


def wide() -> nn.Module:
    """Five convolutions of 24 to 128 channels; 24 is no multiple of 16."""
    torch.manual_seed(0)
    widths = (3, 24, 64, 64, 96, 128)
    layers = [(nn.Conv2d(i, o, 3, 2 if o > 64 else 1, 1), nn.ReLU()) for i, o in pairwise(widths)]
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 4)
    return nn.Sequential(*(module for layer in layers for module in layer), *head).eval()


def settings(allocation: str) -> dict[str, Any]:
    importance = ["magnitude", "r_score"] if allocation == "fair_pruner" else "magnitude"
    return {"allocation": allocation, "importance": importance, "replace": "zero"}


def saved(planner: WidthAllocator, plan: Plan, cost: str, change: dict[str, int] | None = None) -> float:
    """Return the removed share, with some groups larger than planned."""
    kept = {group.name: group.kept + (change or {}).get(group.name, 0) for group in plan.kept_groups}
    return float(1 - getattr(planner.costs.total(kept), cost) / getattr(planner.costs.full, cost))


@pytest.mark.parametrize(("allocation", "cost"), one_in(3, itertools.product(ALLOCATIONS, ["macs", "params"])))
def test_widths_are_multiples_and_the_budget_is_met(allocation: str, cost: str) -> None:
    model = wide()
    plan = plan_width(model, Budget(**{cost: 0.37}), batches=labelled_batches(), round_to=8, **settings(allocation))
    assert any(group.kept < group.size for group in plan.kept_groups)
    assert all(group.kept % 8 == 0 for group in plan.kept_groups)
    assert 0.37 <= removed_share(model, plan, cost) < 0.39
    apply_plan(model, plan)
    assert all(m.out_channels % 8 == 0 for m in model.modules() if isinstance(m, nn.Conv2d))


@pytest.mark.parametrize("allocation", ["per_cost", "global"])
def test_no_step_goes_that_the_budget_does_not_need(allocation: str) -> None:
    planner = WidthAllocator(Session(wide(), labelled_batches()))
    plan = planner.plan(Budget(macs=0.4), WidthRule(round_to=16, **settings(allocation)))
    assert saved(planner, plan, "macs") >= 0.4
    for group in plan.kept_groups:
        if group.kept < group.size:
            assert saved(planner, plan, "macs", {group.name: min(16, group.size - group.kept)}) < 0.4


@pytest.mark.filterwarnings("ignore:The plan removes")  # steps are large
def test_a_number_per_kind() -> None:
    how: dict[str, Any] = {"allocation": "uniform", "round_to": {"neuron": 24, "head": 2}, **QUICK}
    plan = plan_width(vit(), Budget(params=0.3), batches=labelled_batches(), **how)
    kept = {(group.kind, group.kept) for group in plan.kept_groups}
    assert all(number % {"neuron": 24, "head": 2}[kind] == 0 for kind, number in kept)
    assert plan.made_by.arguments["round_to"] == {"neuron": 24, "head": 2}


def test_one_number_is_for_channels_and_neurons() -> None:
    """A model with two heads could lose none if their number had to be a multiple of 8."""
    plan = plan_width(vit(), Budget(params=0.4), batches=labelled_batches(), allocation="uniform", round_to=8, **QUICK)
    kept = [(group.kind, group.kept) for group in plan.kept_groups]
    assert any(kind == "head" and number < 4 for kind, number in kept)
    assert all(number % 8 == 0 for kind, number in kept if kind == "neuron")


@pytest.mark.slow
def test_groups_of_other_widths_stay_whole_or_become_multiples() -> None:
    """48 neurons in steps of 32 are 48 or 32; in steps of 64 they cannot be narrowed."""
    model = tiny_llama()
    plan = plan_width(model, Budget(remove={"neuron": 33}), batches=TEXT, round_to=32, **QUICK)
    assert sorted(group.kept for group in plan.kept_groups) == [32, 32, 32, 48]
    with pytest.raises(ValueError, match="at most 0 can go. Widths stay multiples of up to 64: a lower round_to"):
        plan_width(model, Budget(remove={"neuron": 33}), batches=TEXT, round_to=64, **QUICK)


@pytest.mark.filterwarnings("ignore:The plan removes")  # steps are large
def test_equal_layers_are_multiples_too() -> None:
    how: dict[str, Any] = {"equal_layers": True, "round_to": 8, "kinds": "neuron", **QUICK}
    plan = plan_width(tiny_llama(), Budget(params=0.1), batches=TEXT, **how)
    (kept,) = {group.kept for group in plan.kept_groups}
    assert kept % 8 == 0
    assert kept < 48


def test_a_tolerance_is_kept_by_multiples() -> None:
    how: dict[str, Any] = {"tolerance": 0.3, **settings("fair_pruner")}
    free, steps = (plan_width(cnn(), batches=labelled_batches(), round_to=n, **how) for n in (None, 4))
    before = {group.name: group.kept for group in free.kept_groups}
    for group in steps.kept_groups:
        assert group.kept % 4 == 0
        assert 0 <= group.kept - before[group.name] < 4


def test_stretches_that_must_stay_equal_do() -> None:
    """As a multiple of both numbers."""
    group = Group("conv", "channel", 48, (), multiple=6, strata=2)
    assert rounded([group], 8)[0].multiple == 24
    assert rounded([group], {"neuron": 8}) == (group,)
    assert rounded([group], None) == (group,)


def test_an_allocation_of_ones_own_is_held_to_multiples() -> None:
    def three(groups: Any, *_: Any) -> dict[str, Any]:
        return {groups[0].name: [0, 1, 2]}

    with pytest.raises(ValueError, match="and a multiple of 8, but .* would stay"):
        plan_width(wide(), Budget(macs=0.01), batches=labelled_batches(), allocation=three, round_to=8, **QUICK)


WHOLE = r"Expected round_to as a whole number, or one per kind, but got .*round_to=8"
NOT_POSITIVE = r"Expected round_to of at least 1, but got .*\. For example round_to=8"
WRONG: list[tuple[Any, type[Exception], str]] = [
    *((number, ValueError, NOT_POSITIVE) for number in (0, -8, {"channel": 0}, {"neuron": -1})),
    *((number, TypeError, WHOLE) for number in (True, 8.0, "8", [8], {"channel": 8.0}, {"channel": True}, {8: 8})),
    ({"channels": 8}, ValueError, "Expected round_to for kinds among channel, .*, expert, hidden, but got 'c"),
]


@pytest.mark.parametrize(("number", "error", "message"), WRONG, ids=str)
def test_what_is_no_number_of_a_kind_is_refused(number: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        plan_width(wide(), Budget(macs=0.3), batches=labelled_batches(), round_to=number)
