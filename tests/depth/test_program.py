"""Depth alone out of the library: the default for a share of a cost, and searches where the library does not serve."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cases.engine import batches_of, build
from cases.models.decoders import DECODERS
from cases.planning.networks import images, vit
from cases.sampling import first
from torch import nn

from prunerecover.apply import apply_plan
from prunerecover.cost.macs import count_macs
from prunerecover.families.describe import describe
from prunerecover.model.batches import as_inputs
from prunerecover.plan.budget import Budget
from prunerecover.plan.evidence import BudgetEvidence
from prunerecover.planning.plan_depth import plan_depth
from prunerecover.surgery.merging import merge


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
    plan = plan_depth(DECODERS[name].build(), Budget(macs=0.3), batches=batches_of("llama", n=32))
    assert plan.made_by.arguments["search"] == "greedy"


@pytest.mark.parametrize(
    ("name", "cost"),
    first(3, [("llama", "macs"), ("gpt2", "params"), ("bert", "macs"), ("timm_all", "macs"), ("llama", "params")]),
)
def test_the_merged_network_meets_the_budget_and_the_evidence(name: str, cost: str) -> None:
    model, batches, pruned = build(name), batches_of(name, n=32), build(name)
    plan = plan_depth(model, Budget(**{cost: 0.3}), batches=batches)
    apply_plan(pruned, plan)
    assert plan.result.params == sum(p.numel() for p in pruned.parameters())
    merge(pruned)
    dense, left = (
        count_macs(one, as_inputs(batches[0])) if cost == "macs" else sum(p.numel() for p in one.parameters())
        for one in (model, pruned)
    )
    removed = BudgetEvidence.of(plan.evidence).removed_share[cost]
    assert removed.merged == pytest.approx(1 - left / dense)
    assert removed.merged >= 0.3 - 1e-3
    assert removed.smallest_unit is not None
    assert 0 < removed.smallest_unit <= removed.merged


def test_too_large_a_share_is_refused_in_words_of_depth() -> None:
    with pytest.raises(ValueError, match="Expected units that hold 90.0% of the macs"):
        plan_depth(vit(), Budget(macs=0.9), batches=images(4))


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


@pytest.mark.parametrize("budget", [{"block": 1, "mlp": 1}, {"block": 2, "attention": 1, "mlp": 1}])
def test_budgets_in_units_are_met_exactly_out_of_the_library(budget: dict[str, int]) -> None:
    plan = plan_depth(build("timm"), remove=budget, batches=batches_of("timm"))
    assert plan.made_by.arguments["search"] == "program"
    assert {kind: len(names) for kind, names in plan.removed.items()} == budget
    parts = [name for kind, names in plan.removed.items() if kind != "block" for name in names]
    assert not any(part.startswith(f"{block}.") for block in plan.removed["block"] for part in parts)


def test_a_budget_in_units_is_as_good_as_every_set_of_as_many() -> None:
    """Two attentions of four, fitted alike: no other pair has less divergence where scores add up nearly."""
    judged = []
    for stays in ([], ["blocks.0.attn"], ["blocks.1.attn"], ["blocks.2.attn"]):
        how = {"batches": batches_of("timm"), "ignore": ["blocks.3.attn", *stays]}
        plan = plan_depth(build("timm"), remove={"attention": 2}, **how)
        judged.append(next(iter(plan.evidence["divergence"].values())))
    assert judged[0] <= min(judged[1:]) * 1.05
