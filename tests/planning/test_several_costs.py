"""Several costs in a budget: each is met, and the removed share of each is reported."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cases.planning.networks import cnn, images, left, vit
from torch import nn

from prunerecover import Budget, Plan, apply_plan, frontier, plan_pruning
from prunerecover.cost.macs import count_macs
from prunerecover.cost.met_share import BudgetMissed
from prunerecover.cost.statistics import Interval
from prunerecover.plan.summary import saved_shares
from prunerecover.report.data import PlanSummary
from prunerecover.surgery import saved_cost

MANY = images(6)
SOME = Budget(macs=0.3, params=0.4)


def saved(model: nn.Module, plan: Plan) -> dict[str, float]:
    """Return the removed share of each cost, counted on the pruned network."""
    pruned = copy.deepcopy(model)
    apply_plan(pruned, plan)
    macs = 1 - left(model, pruned)  # merges it
    return {"macs": macs, "params": 1 - _params(pruned) / _params(model)}


def _params(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    "kinds", [pytest.param(("attention", "neuron"), marks=pytest.mark.slow), ("head", "neuron"), ("attention", "mlp")]
)
def test_all_are_met_and_one_hardly_exceeded(kinds: tuple[str, ...]) -> None:
    """By depth and width together, by width alone and by depth alone."""
    model = vit()
    plan = plan_pruning(model, SOME, batches=MANY, kinds=kinds)
    found = saved(model, plan)
    assert all(found[cost] >= share - 0.001 for cost, share in SOME.shares.items())
    assert min(found[cost] - share for cost, share in SOME.shares.items()) < 0.011
    assert saved_shares(plan) == pytest.approx(found)


def test_neither_alone_would_do() -> None:
    """A plan for either cost misses the other, or differs from the plan for both."""
    model = cnn()
    both = saved(model, plan_pruning(model, Budget(macs=0.3, params=0.4), batches=MANY))
    with pytest.warns(BudgetMissed):  # units are large
        macs = saved(model, plan_pruning(model, Budget(macs=0.3), batches=MANY))
    assert macs["params"] < 0.39
    assert both["macs"] >= 0.3
    assert both["params"] >= 0.399


def test_what_goes_of_each_is_told_in_summary_and_report() -> None:
    plan = plan_pruning(cnn(), SOME, batches=MANY)
    said = plan.summary().text()
    for cost, asked in (("MACs", "30.0%"), ("parameters", "40.0%")):
        (row,) = [line for line in said.splitlines() if line.startswith(cost)]
        assert row.endswith(f"asked for: {asked}")
    assert PlanSummary.of(plan).saved == saved_shares(plan)
    assert plan.made_by.arguments["budget"] == {"macs": 0.3, "params": 0.4}


@pytest.mark.slow
def test_time_is_measured_beside_what_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that shows four fifths of the savings in MACs."""

    def ratio(dense: nn.Module, pruned: nn.Module, example: Any, **_: Any) -> Any:
        share = 0.2 + 0.8 * count_macs(pruned, example) / count_macs(dense, example)
        return SimpleNamespace(ratio=Interval(share, share, share), pairs=1, batch_size=example.n_samples)

    monkeypatch.setattr(saved_cost, "latency_ratio", ratio)
    model = vit()
    plan = plan_pruning(model, Budget(latency=0.3, params=0.2), batches=MANY, kinds=("attention", "neuron"))
    found, told = saved(model, plan), saved_shares(plan)
    assert told == pytest.approx({"latency": 0.8 * found["macs"], "params": found["params"]})
    assert 0.29 <= 0.8 * found["macs"] <= 0.33
    assert found["params"] >= 0.199


class Classes(nn.Module):
    """Returns class numbers, which have no order."""

    def __init__(self) -> None:
        super().__init__()
        self.body = vit()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x).argmax(-1)


@pytest.mark.slow
def test_outputs_that_cannot_be_compared_take_the_plan_for_one_of_the_costs() -> None:
    def loss(network: nn.Module, batch: Any) -> torch.Tensor:
        return nn.functional.cross_entropy(network.body(batch[0]), batch[1])

    model = Classes().eval()
    plan = plan_pruning(model, Budget(macs=0.2, params=0.25), batches=MANY, loss=loss, kinds=("neuron", "head"))
    found = saved(model, plan)
    assert found["macs"] >= 0.19
    assert found["params"] >= 0.24
    assert saved_shares(plan) == pytest.approx(found)


@pytest.mark.slow
def test_short_recoveries_compare_plans_that_meet_all_costs() -> None:
    model, plans = vit(), list[Plan]()

    def evaluate(trials: Any) -> list[float]:
        plans.extend(trial.plan for trial in trials)
        return [float(number) for number, _ in enumerate(trials)]

    budget = Budget(macs=0.2, params=0.2)
    plan_pruning(model, budget, batches=MANY, kinds=("attention", "mlp", "neuron"), evaluate=evaluate)
    assert len(plans) == 3
    for plan in plans:
        assert min(saved(model, plan).values()) >= 0.19


def test_what_cannot_go_at_once_is_named_by_cost() -> None:
    with pytest.raises(ValueError, match=r"at most \d+\.\d% of the macs, \d+\.\d% of the params can go"):
        plan_pruning(vit(), Budget(macs=0.1, params=0.95), batches=MANY, kinds=("head", "neuron"))


def test_nothing_of_all_costs_is_nothing() -> None:
    assert not plan_pruning(cnn(), Budget(macs=0.0, params=0.0), batches=images(1)).edits


@pytest.mark.slow
def test_the_frontier_of_several_costs_takes_as_much_of_each() -> None:
    model = vit()
    found = frontier(model, ("macs", "params"), batches=MANY, shares=(0.2, 0.3), kinds=("attention", "neuron"))
    assert str(found).startswith("Frontier over shares of the MACs and parameters")
    assert all(min(point.costs[cost] for cost in ("macs", "params")) >= point.share - 0.001 for point in found.points)
    assert min(saved(model, found.plan(0.2)).values()) >= 0.199
