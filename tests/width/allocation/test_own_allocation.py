"""A user's own allocation: as an object, by its registered name, and by import path."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cases.width.own import least_of_each
from cases.width.plan_width import cnn, labelled_batches, vit
from cases.width.width_prune import fit, prune
from torch import Tensor

from prunerecover import Budget, Plan, plan_width
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.plan.groups import Group
from prunerecover.recipes.plan_methods.width import PerCostPlan
from prunerecover.session.session import Session
from prunerecover.width.allocation.by_importance import lowest, per_cost, uniform
from prunerecover.width.allocation.cost_model import Cost, CostModel
from prunerecover.width.allocation.registry import ALLOCATIONS, RegisteredAllocation, register_allocation
from prunerecover.width.allocator import WidthAllocator
from prunerecover.width.arguments import WidthRule


def planned(model: Any = None, **arguments: Any) -> Plan:
    arguments = {"budget": Budget(macs=0.3), "batches": labelled_batches(), **arguments}
    return plan_width(cnn() if model is None else model, **arguments)


def test_a_callable_decides_what_goes() -> None:
    model = cnn()
    planner = WidthAllocator(Session(model, labelled_batches()))
    (scores,) = planner.scores("gate_taylor")
    plan = planner.plan(Budget(macs=0.1), WidthRule(allocation=least_of_each, importance="gate_taylor"))
    narrowed = {edit.unit: list(edit.gone) for edit in plan.edits if edit.op == "narrow"}
    assert narrowed == {group.name: [int(scores[group.name].argmin())] for group in planner.groups}
    assert plan.made_by.method == "width/least_of_each"


@pytest.mark.slow
@pytest.mark.parametrize(("make", "rule", "name"), [(cnn, uniform, "uniform"), (vit, per_cost, "per_cost")])
def test_our_own_rules_as_callables_plan_as_their_names_do(rule: Any, name: str, make: Callable[[], Any]) -> None:
    """Also with weighed kinds, a part of `per_cost` by name and as a function."""
    assert planned(make(), allocation=rule).edits == planned(make(), allocation=name).edits


@pytest.mark.slow
def test_a_name_means_the_rule_that_is_registered() -> None:
    register_allocation("least", least_of_each)
    try:
        assert planned(allocation="least").edits == planned(allocation=least_of_each).edits
        assert planned(allocation="least").made_by.method == "width/least"
        with pytest.raises(ValueError, match="Expected a name that no allocation has, but 'least' is taken"):
            register_allocation("least", uniform)
    finally:
        del ALLOCATIONS["least"]
    with pytest.raises(ValueError, match="but 'fair_pruner' is taken"):
        register_allocation("fair_pruner", uniform)


@pytest.mark.slow
def test_a_callable_decides_in_a_fit_and_a_resumed_run_knows_it(tmp_path: Path) -> None:
    steps = {"schedule": {"start": 0, "every": 1, "times": 2}}
    module = fit(tmp_path, prune(**steps, allocation=least_of_each), epochs=2)
    assert {plan.made_by.method for plan in Ledger.of(module).plans.values()} == {"width/least_of_each"}
    message = "with the arguments of the run that is resumed .*'least_of_each'.*'allocation': 'uniform'"
    with pytest.raises(ValueError, match=message):
        fit(tmp_path, prune(**steps, allocation="uniform"), epochs=3, ckpt=tmp_path / "files" / "epoch=0.ckpt")


def test_a_recipe_plans_by_it() -> None:
    method = PerCostPlan(macs=0.1, allocation=least_of_each)
    plan = method._plan(WidthAllocator(Session(vit(), labelled_batches()), method.config))
    assert {len(edit.gone) for edit in plan.edits} == {1}


# Refusals

GROUP = Group("a", "channel", 8, ())
COSTS = CostModel(Cost(80, 80), {"a": 8}, {"a": (10, 10)}, {"a": ()})


def allocated(returned: Any, group: Group = GROUP) -> Tensor:
    rule = RegisteredAllocation("mine", lambda groups, scores, costs, budget: returned)
    return rule([group], {"a": torch.arange(8.0)}, COSTS, Budget(macs=0.3))["a"]


def test_lists_and_missing_groups_are_taken() -> None:
    assert allocated({"a": [1, 4]}).tolist() == [1, 4]
    assert allocated({}).tolist() == []
    assert allocated({"a": []}).dtype == torch.long
    assert allocated({"a": torch.tensor([2], dtype=torch.int32)}).dtype == torch.long


@pytest.mark.parametrize(
    ("returned", "error", "message"),
    [
        ([1], TypeError, r"Expected allocation 'mine' to return \{group name: units that go\}, but got list"),
        ({"b": [1]}, ValueError, "units of the groups that it is given, such as 'a', but got 'b'"),
        ({"a": torch.ones(2)}, TypeError, r"numbers of the units of 'a' that go, .* got torch.float32 of shape \(2,"),
        ({"a": torch.ones(8, dtype=torch.bool)}, TypeError, "but got torch.bool"),
        ({"a": 3}, TypeError, r"but got torch.int64 of shape \(\)"),
        ({"a": [8]}, ValueError, r"units of 'a' from 0 to 7, ascending and each once, but got \[8\]"),
        ({"a": [-1]}, ValueError, r"but got \[-1\]"),
        ({"a": [3, 1]}, ValueError, r"ascending and each once, but got \[3, 1\]"),
        ({"a": [1, 1]}, ValueError, r"each once, but got \[1, 1\]"),
        ({"a": list(range(8))}, ValueError, "leave 'a' at least 1 of its 8 units and a multiple of 1, but 0 would"),
    ],
)
def test_bad_returns(returned: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        allocated(returned)


def test_rules_of_the_group_are_kept() -> None:
    even = Group("a", "expert", 8, (), at_least=2, multiple=4, strata=4)
    message = "at least 2 of its 8 units and a multiple of 4, but 5 would stay"
    with pytest.raises(ValueError, match=message):
        allocated({"a": [0, 1, 2]}, even)
    with pytest.raises(ValueError, match=r"many units of 'a' out of each of its 4 strata, but got \[2, 2, 0, 0\]"):
        allocated({"a": [0, 1, 2, 3]}, even)
    assert allocated({"a": [0, 2, 4, 6]}, even).tolist() == [0, 2, 4, 6]
    assert allocated(lowest([even], {"a": torch.arange(8.0)}, {"a": 4}), even).tolist() == [0, 2, 4, 6]


def test_what_is_no_allocation() -> None:
    with pytest.raises(TypeError, match="Expected allocation to be a name or a callable .*, but got int"):
        planned(allocation=3)
    with pytest.raises(ValueError, match="one importance for allocation='least_of_each', but got u_score, r_score"):
        planned(allocation=least_of_each, importance=["u_score", "r_score"])
