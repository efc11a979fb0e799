"""Budgets of depth plans: in units, and in shares of cost that choose units in an order."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from cases.engine import batches_of, build
from cases.sampling import one_in
from torch import nn

from prunerecover.apply import apply_plan
from prunerecover.depth.choice import Choice
from prunerecover.depth.search.goals import Share
from prunerecover.plan.budget import Budget
from prunerecover.plan.plan import Plan
from prunerecover.plan.units import Unit
from prunerecover.planning.plan_depth import plan_depth
from prunerecover.sites.find import find_units


def planned(budget: Budget | None = None, **how: Any) -> Plan:
    return plan_depth(build("timm"), budget, batches=batches_of("timm"), **how)


def test_share_of_cost_takes_the_shortest_prefix() -> None:
    """One unit fewer, in the order of importance per cost, would not be enough."""
    plan = planned(Budget(params=0.3), replace="zero", search="one_shot", ignore=["blocks.?"])
    model = build("timm")
    units = {u.name: u for u in find_units(model) if u.kind != "block"}
    order = sorted(units, key=lambda n: plan.evidence["importance"][n] / units[n].params)
    gone = [n for names in plan.removed.values() for n in names]
    last = max(order.index(n) for n in gone)
    total = sum(p.numel() for p in model.parameters())
    mlps = {u.block for n, u in units.items() if u.kind == "mlp" and n in order[: last + 1]}
    taken = [units[n] for n in order[:last] if units[n].kind != "activation" or units[n].block not in mlps]
    assert sum(u.params for u in taken) / total < 0.3 <= sum(units[n].params for n in gone) / total


def test_importance_of_one_kind_may_fill_a_share_of_cost() -> None:
    plan = planned(Budget(params=0.1), importance="magnitude", ignore=["blocks.?", "*.mlp", "*.act"])
    assert set(plan.removed) == {"attention"}


@pytest.mark.parametrize("search", ["greedy", "one_shot"])
def test_the_last_block_that_is_not_ignored_may_go_where_ignored_ones_stay(search: str) -> None:
    plan = planned(Budget(macs=0.2), search=search, ignore=["blocks.[012]", "*.*.*"])
    assert plan.removed == {"block": ("blocks.3",)}


def test_ratio_rounds_to_units() -> None:
    plan = planned(Budget(ratio={"attention": 0.5, "mlp": 0.3}))
    assert {kind: len(names) for kind, names in plan.removed.items()} == {"attention": 2, "mlp": 1}


def test_units_inside_removed_ones_are_not_counted() -> None:
    """All blocks but one, and one attention: it has to be the one that is left; a removed MLP takes its activation."""
    plan = planned(remove={"block": 3, "attention": 1}, replace="zero")
    assert not any(plan.removed["attention"][0].startswith(f"{b}.") for b in plan.removed["block"])
    apply_plan(build("timm"), plan)
    plan = planned(remove={"mlp": 3, "activation": 1})
    mlps = {name.removesuffix(".mlp") for name in plan.removed["mlp"]}
    assert plan.removed["activation"][0].removesuffix(".mlp.act") not in mlps


def test_nothing_to_remove_gives_the_empty_plan() -> None:
    assert planned(remove={"attention": 0}) == Plan()


@pytest.mark.parametrize(
    ("kinds", "search"), one_in(2, itertools.product(["attention", "layer"], [None, "greedy", "one_shot"]))
)
def test_nothing_goes_for_a_share_of_nothing(kinds: str, search: str | None) -> None:
    assert planned(Budget(macs=0.0), kinds=kinds, search=search).edits == ()


@pytest.mark.slow
@pytest.mark.parametrize("budget", [Budget(macs=0.0), Budget(latency=0.0)], ids=str)
def test_nothing_of_any_kind_goes_for_a_share_of_nothing(budget: Budget) -> None:
    assert planned(budget).edits == ()


@pytest.mark.parametrize("budget", [Budget(remove={}), Budget(remove={"layer": 0})], ids=str)
def test_nothing_goes_for_a_budget_of_no_units(budget: Budget) -> None:
    """Of a network of no supported family."""
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    assert plan_depth(model, budget, batches=[torch.randn(8, 6)]).edits == ()


@pytest.mark.parametrize(("asked", "aimed"), [(0.4, 0.39), (0.02, 0.019)])
def test_a_share_of_latency_may_be_missed_as_far_as_clocks_differ(
    asked: float, aimed: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    sought: list[float] = []

    def noted(_: Choice, goal: Share, __: Budget) -> tuple[dict[str, float], list[Unit]]:
        sought.append(goal.share)
        return {}, []

    monkeypatch.setattr(Choice, "chosen", noted)
    planned(Budget(latency=asked), search="greedy")
    planned(Budget(macs=asked), search="greedy")
    assert sought == [pytest.approx(aimed), asked]
