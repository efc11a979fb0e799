"""Depth alone out of the library: the default for a share of a cost, and searches where the library does not serve."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cases.engine import batches_of, build
from cases.models.decoders import DECODERS
from cases.planning.networks import images, vit
from torch import nn

from prunerecover.apply import apply_plan
from prunerecover.cost.macs import count_macs
from prunerecover.families.describe import describe
from prunerecover.plan.budget import Budget
from prunerecover.plan.evidence import BudgetEvidence
from prunerecover.plan.plan import Plan
from prunerecover.planning.plan_depth import plan_depth
from prunerecover.surgery.merging import merge


def search_of(model: nn.Module, batches: Any, budget: Budget | None = None, **how: Any) -> str:
    """Return the name of the search that makes a plan of depth."""
    made_by = plan_depth(model, budget or Budget(macs=0.3), batches=batches, **how).made_by
    return str(made_by.arguments["search"])


@pytest.mark.parametrize(
    ("how", "search"),
    [
        ({}, "program"),
        ({"ignore": ["*.act", "blocks.0*"]}, "program"),
        ({"kinds": "block"}, "program"),
        ({"search": "greedy"}, "greedy"),
        ({"kinds": ("mlp", "activation")}, "greedy"),
        ({"replace": "zero"}, "greedy"),
        ({"importance": "magnitude", "kinds": "mlp"}, "one_shot"),
        ({"remove": {"mlp": 1}}, "program"),
        ({"remove": {"activation": 1}}, "greedy"),
    ],
)
def test_budgets_are_planned_by_the_program_unless_another_way_is_asked_for(how: dict[str, Any], search: str) -> None:
    budget = None if "remove" in how else Budget(macs=0.3)
    assert plan_depth(vit(), budget, batches=images(4), **how).made_by.arguments["search"] == search


@pytest.mark.parametrize("name", ["gpt_neox", "mixtral"])
def test_blocks_with_parallel_branches_and_experts_keep_their_search(name: str) -> None:
    assert search_of(DECODERS[name].build(), batches_of("llama", n=32)) == "greedy"


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert"])
def test_the_merged_network_meets_the_budget_and_the_evidence(name: str) -> None:
    model, batches = build(name), batches_of(name, n=32)
    plan = plan_depth(model, Budget(macs=0.3), batches=batches)
    dense, pruned = count_macs(model, batches[0]), build(name)
    apply_plan(pruned, plan)
    merge(pruned)
    removed = BudgetEvidence.of(plan.evidence).removed_share["macs"]
    assert removed.merged == pytest.approx(1 - count_macs(pruned, batches[0]) / dense)
    assert removed.merged >= 0.3 - 1e-3
    assert removed.smallest_unit is not None
    assert 0 < removed.smallest_unit <= removed.merged


def test_too_large_a_share_is_refused_in_words_of_depth() -> None:
    with pytest.raises(ValueError, match="Expected units that hold 90.0% of the macs"):
        plan_depth(vit(), Budget(macs=0.9), batches=images(4))
    with pytest.raises(ValueError, match="to match units such as blocks.0, but 'nothing' matches none"):
        plan_depth(vit(), Budget(macs=0.3), batches=images(4), ignore="nothing")
    with pytest.raises(ValueError, match="that the library of depth serves, for search='program', but got others"):
        plan_depth(vit(), remove={"activation": 1}, batches=images(4), search="program")


class BufferScale(nn.Module):
    """LayerScale with factors in a buffer."""

    def __init__(self, factors: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("gamma", factors)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scale each feature."""
        return x * self.gamma


def test_a_layer_scale_in_a_buffer_gives_the_plan_of_one_in_a_parameter() -> None:
    model, other = vit(init_values=0.5), vit(init_values=0.5)
    for block in describe(other).blocks:
        module = other.get_submodule(block.path)
        module.ls1, module.ls2 = BufferScale(module.ls1.gamma.data), BufferScale(module.ls2.gamma.data)  # type: ignore[union-attr]
    plans = [plan_depth(one, Budget(macs=0.3), batches=images(4)) for one in (model, other)]
    assert plans[0].removed == plans[1].removed
    assert plans[0].evidence["importance"] == pytest.approx(plans[1].evidence["importance"])


@pytest.mark.parametrize("budget", [{"attention": 2}, {"block": 1, "mlp": 1}, {"block": 2, "attention": 1, "mlp": 1}])
def test_budgets_in_units_are_met_exactly_out_of_the_library(budget: dict[str, int]) -> None:
    model, batches = build("timm"), batches_of("timm")
    plan = plan_depth(model, remove=budget, batches=batches)
    assert plan.made_by.arguments["search"] == "program"
    assert {kind: len(names) for kind, names in plan.removed.items()} == budget
    assert not any(inner.startswith(f"{block}.") for block in plan.removed.get("block", ()) for inner in others(plan))


def others(plan: Plan) -> list[str]:
    return [name for kind, names in plan.removed.items() if kind != "block" for name in names]


def test_a_budget_in_units_is_as_good_as_every_set_of_as_many() -> None:
    """Two attentions of four, fitted alike: no other pair has less divergence where scores add up nearly."""
    model, batches = build("timm"), batches_of("timm")
    found = plan_depth(model, remove={"attention": 2}, batches=batches, ignore=["blocks.3.attn"])
    pairs = [
        plan_depth(model, remove={"attention": 2}, batches=batches, ignore=["blocks.3.attn", f"blocks.{stays}.attn"])
        for stays in range(3)
    ]
    judged = [next(iter(plan.evidence["divergence"].values())) for plan in (found, *pairs)]
    assert judged[0] <= min(judged[1:]) * 1.05
