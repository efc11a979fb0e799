"""Refusals of a budget over depth and width, and their messages."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cases.planning.networks import cnn, images, vit
from torch import nn
from torch.nn.utils.prune import l1_unstructured

from prunerecover import Budget, plan_pruning
from prunerecover.plan.evidence import SplitEvidence

SOME = Budget(macs=0.2)


def refused(match: str, model: nn.Module | None = None, error: type[Exception] = ValueError, **arguments: Any) -> None:
    given = {"budget": SOME, "batches": images(1), **arguments}
    with pytest.raises(error, match=match):
        plan_pruning(vit(depth=2) if model is None else model, **given)


@pytest.mark.parametrize("budget", [Budget(remove={"attention": 1}), Budget(ratio={"expert": 0.5})])
def test_budget_in_units(budget: Budget) -> None:
    refused("Expected a share of a cost, such as the MACs, .* plan_depth or DepthPrune, .* plan_width", budget=budget)


def test_no_budget() -> None:
    refused(
        r"Expected argument budget to be a Budget, but got float. Use Budget\(macs=0.3\)", error=TypeError, budget=0.3
    )


@pytest.mark.parametrize("kinds", ["layers", ("attention", "heads"), ()])
def test_unknown_kinds(kinds: Any) -> None:
    refused("Expected kinds among block, attention, .*, expert, hidden, but got", kinds=kinds)


def test_nothing_can_go() -> None:
    torch.manual_seed(0)
    alone = nn.Sequential(nn.Flatten(), nn.Linear(768, 4))
    refused("Expected Sequential to have units of depth or width that may go, .* Depth: .* Width: ", alone)


def test_pattern_that_matches_nothing() -> None:
    refused(
        r"Expected argument ignore to match units .* such as blocks.0, but 'layer.\*' matches none", ignore="layer.*"
    )


def test_batches_that_the_model_does_not_take() -> None:
    refused("Expected batches that VisionTransformer can be called with", batches=[torch.zeros(8, 2)])


def test_masked_weights_are_named_once() -> None:
    model = vit(depth=2)
    l1_unstructured(model.head, "weight", 0.5)
    refused("^Expected weights that are parameters, but 'head' computes 'weight' by a mask", model)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The plan removes")
def test_budget_beyond_both() -> None:
    kinds = ("activation", "neuron")
    refused(
        r"Expected a budget that depth and width can meet, but \{'macs': 0.97\} is not one. ",
        budget=Budget(macs=0.97),
        kinds=kinds,
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The plan removes")
def test_why_there_is_no_plan_of_depth_alone_is_told() -> None:
    """The attentions of this network hold fewer parameters, and the neurons more."""
    plan = plan_pruning(
        vit(depth=2),
        Budget(macs=0.4),
        batches=images(1),
        kinds=("attention", "neuron"),
        evaluate=lambda trials: [1.0] * len(trials),
    )
    refusals = {one.depth: one.refused for one in SplitEvidence.of(plan.evidence).splits if one.refused}
    assert "can go" in refusals[1.0] or "hold" in refusals[1.0]


def test_nothing_goes_for_nothing() -> None:
    assert not plan_pruning(cnn(), Budget(macs=0.0), batches=images(1)).edits
