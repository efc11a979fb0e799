"""Budgets of remaining amounts: no more remains, and the plan states the request."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from cases.planning.networks import images, vit
from torch import nn

from prunerecover import Budget, Plan, apply_plan, merge, plan_depth, plan_pruning, plan_width
from prunerecover.cost.macs import count_macs
from prunerecover.session.session import Session
from prunerecover.surgery import saved_cost

BATCHES = images()
IMAGE = BATCHES[0][0][:1]
Planner = Callable[..., Plan]


def params_of(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def macs_of(model: nn.Module) -> int:
    return count_macs(model, IMAGE)


def left(plan: Plan) -> nn.Module:
    pruned = copy.deepcopy(vit())
    apply_plan(pruned, plan)
    merge(pruned)
    return pruned


@pytest.mark.parametrize(
    ("make", "kinds", "cost", "asked", "most"),
    [
        (plan_depth, ("attention", "mlp"), "macs", "0.05M", 50_000),
        (plan_width, ("head", "neuron"), "params", "10K", 10_000),
        pytest.param(plan_pruning, ("attention", "neuron"), "macs", "0.05M", 50_000, marks=pytest.mark.slow),
    ],
)
def test_no_more_is_left(make: Planner, kinds: tuple[str, ...], cost: str, asked: str, most: int) -> None:
    """Up to the tolerance of the resulting share; and nearly the full amount remains."""
    plan = make(vit(), Budget(**{cost: asked}), batches=BATCHES, kinds=kinds)
    count = {"macs": macs_of, "params": params_of}[cost]
    dense = count(vit())
    assert dense > most
    assert most - 0.1 * dense <= count(left(plan)) <= most + 0.01 * dense
    assert plan.made_by.arguments["budget"] == {cost: asked}
    assert f"asked for: at most {asked} left" in plan.summary().text()
    share: Any = {cost: 1 - most / dense}
    assert plan.edits == make(vit(), Budget(**share), batches=BATCHES, kinds=kinds).edits


def test_amounts_and_shares_are_met_at_once() -> None:
    plan = plan_pruning(vit(), Budget(macs="0.05M", params=0.2), batches=images(6), kinds=("head", "neuron"))
    assert macs_of(left(plan)) <= 50_000 + 0.001 * macs_of(vit())
    assert params_of(left(plan)) <= 0.801 * params_of(vit())
    assert plan.made_by.arguments["budget"] == {"macs": "0.05M", "params": 0.2}


def test_time_is_that_of_the_first_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[int] = []

    def seconds(model: nn.Module, inputs: Any, *_: Any) -> float:
        timed.append(inputs.n_samples)
        return 8.0  # ms

    monkeypatch.setattr(saved_cost, "median_latency", seconds)
    session = Session(vit(), BATCHES)
    assert session.in_shares(Budget(latency="6 ms")).shares == pytest.approx({"latency": 0.25})
    assert session.in_shares(Budget(latency="0.004s")).shares == pytest.approx({"latency": 0.5})
    assert timed == [len(BATCHES[0][0])], "it is measured once"


@pytest.mark.parametrize("make", [plan_depth, plan_width, plan_pruning])
def test_nothing_goes_where_no_more_is_left_anyway(make: Planner) -> None:
    said = r"The network takes 13.\d?K of parameters, and may keep 1M: nothing has to go for it. Ask for less"
    with pytest.warns(UserWarning, match=said):
        assert not make(vit(), Budget(params="1M"), batches=BATCHES).edits


@pytest.mark.parametrize("make", [plan_depth, plan_width])
def test_more_than_can_go_is_refused(make: Planner) -> None:
    with pytest.raises(ValueError, match="can go|hold|at most"):
        make(vit(), Budget(params="1K"), batches=BATCHES, kinds=("mlp",) if make is plan_depth else ("neuron",))
