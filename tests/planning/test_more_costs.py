"""Budgets of a language model's memory in service, checkpoint and active parameters, alone and beside others."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from cases.models.tiny import tiny_llama, tiny_mixture
from cases.planning.networks import images, vit
from cases.width.experts import text
from torch import nn

from prunerecover import Budget, Plan, Prune, apply_plan, frontier, plan_depth, plan_pruning, plan_width
from prunerecover.cost.active_parameters import active_parameters
from prunerecover.cost.checkpoint_size import checkpoint_bytes
from prunerecover.cost.served_memory import served_memory
from prunerecover.cost.units.serving import Serving
from prunerecover.model.batches import as_inputs
from prunerecover.plan.summary import saved_shares
from prunerecover.surgery.merging import merge

LOAD = Serving(batch=8, tokens=512)
pytestmark = pytest.mark.filterwarnings("ignore::prunerecover.cost.met_share.BudgetMissed")  # units are large
SERVED = {"batch": 8, "tokens": 512}


def memory(model: nn.Module) -> int:
    return served_memory(model, as_inputs({"input_ids": torch.arange(4)[None]}), LOAD)


def removed(model: nn.Module, plan: Plan, count: Any) -> float:
    pruned = copy.deepcopy(model)
    apply_plan(pruned, plan)
    merge(pruned)
    return 1 - count(pruned) / count(model)


@pytest.mark.slow
def test_memory_is_met_with_the_cache_at_its_batch_and_length() -> None:
    """Memory here is mostly keys and values: heads are removed, although with few parameters."""
    model = tiny_llama()
    budget = Budget(memory=0.3, **SERVED)
    plan = plan_pruning(model, budget, batches=text(6), kinds=("attention", "head", "neuron"))
    assert 0.299 <= removed(model, plan, memory) <= 0.45
    assert saved_shares(plan) == {"memory": pytest.approx(removed(model, plan, memory))}
    assert plan.made_by.arguments["budget"] == {"memory": 0.3, "batch": 8, "tokens": 512}
    assert "memory" in plan.summary().text()


@pytest.mark.slow
def test_an_amount_of_memory_beside_a_share_of_the_parameters() -> None:
    model = tiny_llama()
    most = int(0.75 * memory(model) / 1e3)
    budget = Budget(memory=f"{most}KB", params=0.1, **SERVED)
    plan = plan_pruning(model, budget, batches=text(6), kinds=("attention", "neuron"))
    assert 1 - removed(model, plan, memory) <= 1.001 * most * 1e3 / memory(model)
    assert removed(model, plan, lambda network: sum(p.numel() for p in network.parameters())) >= 0.099


@pytest.mark.slow
@pytest.mark.parametrize(("cost", "count"), [("checkpoint", checkpoint_bytes), ("active_params", active_parameters)])
def test_bytes_and_active_parameters_are_met(cost: str, count: Any) -> None:
    model = tiny_mixture("mixtral")
    plan = plan_pruning(model, Budget(**{cost: 0.08}), batches=text(6), kinds=("attention", "head"))
    assert 0.079 <= removed(model, plan, count) <= 0.15


def test_a_network_that_serves_no_tokens_has_no_such_memory() -> None:
    with pytest.raises(ValueError, match="a key-value cache .*, but VisionTransformer fills none"):
        plan_pruning(vit(depth=2), Budget(memory=0.3, **SERVED), batches=images(6), kinds=("neuron",))


@pytest.mark.parametrize("make", [plan_depth, plan_width])
def test_planners_of_one_alone_name_what_plans_for_it(make: Any) -> None:
    with pytest.raises(
        ValueError, match=r"one cost among macs, .*Budget\(checkpoint=0.3\). For other costs, or several"
    ):
        make(vit(depth=1), Budget(checkpoint=0.3), batches=images(1))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"memory": 0.3}, r"Expected batch and tokens with memory, .*but got Budget\(memory=0.3\)"),
        ({"memory": 0.3, "batch": 8}, "Expected batch and tokens with memory"),
        ({"macs": 0.3, "batch": 8, "tokens": 64}, "Expected batch and tokens with memory, and without it neither"),
        ({"memory": 0.3, "batch": 0, "tokens": 64}, "Expected argument batch to be a whole number of at least 1"),
        ({"memory": "6 gigs", "batch": 1, "tokens": 64}, "KB, MB, GB, TB, KiB, MiB, GiB, TiB, but got '6 gigs'"),
        ({"batch": 8, "tokens": 64}, "Expected exactly one of remove and ratio, or one or more of macs"),
    ],
)
def test_a_load_that_does_not_go_with_the_budget(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Prune(Budget(**arguments))


def test_a_frontier_has_no_load() -> None:
    with pytest.raises(ValueError, match=r"costs independent of a load, but .*memory.* Budget\(memory=0.3, batch=8"):
        frontier(tiny_llama(), ("params", "memory"), batches=text(1))


def test_steps_keep_the_load() -> None:
    budget = Budget(memory=0.5, params=0.2, **SERVED)
    assert budget.in_steps(2)[0] == Budget(memory=0.25, params=0.1, **SERVED)
    assert budget.remaining([{"memory": 0.5, "params": 0.1}]) == Budget(
        params=budget.remaining([{"params": 0.1}]).params
    )
