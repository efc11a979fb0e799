"""Budgets: kinds, shares and refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from cases.engine import batches_of, build
from torch import nn

from prunerecover import DepthPrune, WidthPrune, plan_depth, plan_width
from prunerecover.model.batches import as_inputs
from prunerecover.plan.budget import Budget
from prunerecover.plan.edits import Remove
from prunerecover.plan.plan import Plan
from prunerecover.surgery.saved_cost import budget_used


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "exactly one of remove and ratio, or one or more of macs, params, .*, active_params, but got none"),
        ({"remove": {"mlp": 1}, "ratio": {"mlp": 0.5}}, r"but got \['ratio', 'remove'\]"),
        ({"remove": {"mlp": 1}, "macs": 0.1}, r"but got \['macs', 'remove'\]"),
        ({"macs": 0.3, "params": 1.5}, r"params to be a removed share between 0 and 1 \(exclusive\), but got 1.5"),
        ({"remove": {"attn": 1}}, "Expected kinds among .*, but got 'attn'"),
        ({"remove": {"attention": 1.5}}, "a whole number of units >= 0 for 'attention', but got 1.5"),
        ({"ratio": {"attention": 1.0}}, r"a removed share between 0 and 1 \(exclusive\), but got 1.0"),
        ({"params": 25_000_000}, r"\(exclusive\), but got 25000000. What may be left has a unit: '100M'."),
        (
            {"latency": "5 msec"},
            r"may be left, a number above 0 with one of the units us, ms, s, but got '5 msec'. For example '5ms'",
        ),
        ({"macs": "0.8g"}, "one of the units K, M, G, T, but got '0.8g'"),
        ({"macs": "0.3"}, "a removed share, such as 0.3, or what may be left, .* but got '0.3'"),
        ({"params": "5ms"}, "one of the units K, M, G, T, B, but got '5ms'"),
        ({"params": "0M"}, "a number above 0 .* but got '0M'"),
    ],
)
def test_bad_budget_is_explained(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Budget(**arguments)


def test_budget_tells_kinds_and_share() -> None:
    assert Budget(remove={"mlp": 1}).kinds(("block", "mlp")) == ("mlp",)
    assert Budget(ratio={"block": 0.5}).counts({"block": 5}) == {"block": 2}
    assert Budget(macs=0.2).kinds(("block", "mlp")) == ("block", "mlp")
    assert Budget(params=0.2).share == ("params", 0.2)
    assert Budget(ratio={"block": 0.5}).shares == {}
    assert Budget(remove={"mlp": 1}).share is None
    assert Budget(remove={"mlp": 1}).to_dict() == {"remove": {"mlp": 1}}


def test_several_costs_are_one_budget() -> None:
    budget = Budget(params=0.2, macs=0.3)
    assert budget.shares == budget.to_dict() == {"macs": 0.3, "params": 0.2}
    assert Budget(**budget.to_dict()) == budget
    assert repr(budget) == "Budget(macs=0.3, params=0.2)"
    assert not budget.in_units
    assert budget.kinds(("block", "mlp")) == ("block", "mlp")


def test_steps_take_as_much_of_each_cost() -> None:
    assert Budget(macs=0.5, params=0.2).in_steps(2) == [Budget(macs=0.25, params=0.1), Budget(macs=0.5, params=0.2)]


def test_each_cost_has_a_rest_of_its_own() -> None:
    budget = Budget(macs=0.5, latency=0.2)
    left = budget.remaining(iter([{"macs": 0.25, "latency": 0.1}, {"macs": 1 / 9, "latency": 0.0}]))
    assert left is not None
    assert left.shares == pytest.approx({"macs": 0.25, "latency": 1 / 9})  # of the 2 / 3 and 9 / 10 that are there
    assert budget.remaining([{"macs": 0.25, "latency": 0.2}]) == Budget(macs=1 / 3)  # all of the latency has gone
    assert budget.remaining([{"macs": 0.6, "latency": 0.2}]) is None


def test_amounts_are_numbers_of_what_may_be_left() -> None:
    budget = Budget(macs="0.8G", params="1.5B", latency="250us")
    assert budget.amounts == pytest.approx({"macs": 8e8, "params": 1.5e9, "latency": 2.5e-4})
    assert budget.to_dict() == {"macs": "0.8G", "params": "1.5B", "latency": "250us"}
    assert Budget(**budget.to_dict()) == budget
    assert budget.shares == {}
    dense = {"macs": 1e9, "params": 1e9, "latency": 1e-3}
    assert budget.in_shares(dense.__getitem__).shares == pytest.approx({"macs": 0.2, "params": 0.0, "latency": 0.75})


def test_steps_to_an_amount_take_as_much_of_what_is_there() -> None:
    """From 1,000 to 400 in three steps, each relative to the remainder, beside a share."""
    left, gone = [1000.0], list[float]()
    for step in Budget(params="0.4K", macs=0.3).in_steps(3):
        shares = step.in_shares(lambda cost: left[-1]).shares
        left.append(left[-1] * (1 - shares["params"]))
        gone.append(shares["macs"])
    assert left == pytest.approx([1000, 800, 600, 400])
    assert gone == pytest.approx([0.1, 0.2, 0.3])


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        (Budget(macs="0.8G"), r"a share of a cost, but got Budget\(macs='0.8G'\). Say how much goes"),
        (Budget(macs=0.3, params=0.2), r"macs, params, latency, but got Budget\(macs=0.3, params=0.2\). For"),
    ],
)
def test_only_a_budget_of_one_share_has_one(budget: Budget, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _ = budget.share
    with pytest.raises(TypeError, match="a budget in units, but got one in a share of cost"):
        budget.counts({})


@pytest.mark.parametrize("plan", [plan_depth, plan_width])
def test_several_costs_are_refused_before_anything_is_computed(plan: Callable[..., Plan]) -> None:
    with pytest.raises(ValueError, match="Expected a budget in one cost among macs, params, latency, but got"):
        plan(nn.Identity(), Budget(macs=0.3, latency=0.2), batches=[])


@pytest.mark.parametrize("callback", [DepthPrune, WidthPrune])
def test_callbacks_of_one_dimension_refuse_several_costs(callback: Callable[[Budget], object]) -> None:
    with pytest.raises(ValueError, match="Expected a budget in one cost among macs, params, latency, but got"):
        callback(Budget(macs=0.3, latency=0.2))


def test_what_a_plan_takes_is_told_of_each_cost() -> None:
    model, example = build("timm"), as_inputs(batches_of("timm")[0])
    plan = Plan(edits=(Remove(unit="blocks.0.mlp", kind="mlp"),))
    alone = [budget_used(plan, budget, model, lambda: example) for budget in (Budget(macs=0.3), Budget(params=0.3))]
    assert budget_used(plan, Budget(macs=0.3, params=0.3), model, lambda: example) == alone[0] | alone[1]
    assert min(alone[0]["macs"], alone[1]["params"]) > 0
    assert budget_used(Plan(), Budget(macs=0.3, params=0.3), model, lambda: example) == {}
