"""Depth plans that are refused: what was expected, what was got, and the model stays as it was."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from cases.engine import batches_of, build, loss, unchanged
from cases.models.decoders import OTHERS
from cases.models.tiny import tiny_inputs
from cases.sampling import one_in
from torch import nn

from prunerecover.language.likelihood import next_token_loss
from prunerecover.plan.budget import Budget
from prunerecover.planning.plan_depth import plan_depth

ONE = {"attention": 1}
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "unknown kind": ({"remove": {"attn": 1}}, "Expected kinds among block, attention, mlp, activation"),
    "kind of width": ({"remove": {"head": 1}}, "for a plan in depth, but got 'head'"),
    "more than exist": ({"remove": {"attention": 5}}, "at most 4 units of kind 'attention' to remove, but got 5"),
    "all blocks": ({"remove": {"block": 4}}, "to stay, so that at most 3 of 4 blocks can go, but got 4"),
    "crowded": ({"remove": {"block": 3, "attention": 2}}, "outside the other removed ones for .*'attention': 1.* more"),
    "crowded in a greedy search": (
        {"remove": {"attention": 4, "block": 2}, "search": "greedy", "replace": "zero"},
        "enough units outside the other removed ones",
    ),
    "more than all in a greedy search": (
        {"budget": Budget(macs=0.9), "replace": "zero", "ignore": ["blocks.?", "*.mlp*"]},
        "units that hold 90.0% of the macs, but all 4 that may go hold",
    ),
    "kinds that are not compared": (
        {"budget": Budget(macs=0.2), "importance": "gate_gradient", "loss": loss},
        "its values differ in scale between kinds and must not be compared",
    ),
    "program where others search": (
        {"remove": {"activation": 1}, "search": "program"},
        "that the library of depth serves, for search='program', but got others",
    ),
    "ignore": ({"remove": ONE, "ignore": ["block.3"]}, "ignore to match units .*, but 'block.3' matches"),
    "negative": ({"remove": {"attention": -1}}, "a whole number of units >= 0 for 'attention', but got -1"),
    "no budget": ({}, "either a budget or remove="),
    "two budgets": ({"remove": ONE, "budget": Budget(macs=0.1)}, "and not both"),
    "consumed generator": (
        {"remove": ONE, "batches": iter(())},
        "at least one calibration batch, but got none. Was a generator consumed before",
    ),
    "importance": ({"remove": ONE, "importance": "luck"}, "importance to be one of output.*, but got 'luck'"),
    "replace": ({"remove": ONE, "replace": "magic"}, "replace to be one of calibrated, zero, identity"),
    "search": ({"remove": ONE, "search": "beam"}, "search to be one of program, .* but got 'beam'"),
    "no loss": ({"remove": ONE, "importance": "taylor"}, r"loss=f\(model, batch\) for importance='tay"),
    "a loss that nothing reads": (
        {"remove": ONE, "loss": lambda model, batch: model(batch).sum()},
        "no loss for importance='output_divergence', .* set importance='cross_entropy' to keep the loss low",
    ),
    "greedy by magnitude": (
        {"budget": Budget(macs=0.1), "search": "greedy", "importance": "magnitude"},
        "one of output_divergence, cross_entropy for search='greedy', .* but got 'magnitude'. Use",
    ),
    "exact by magnitude, on the graph": (
        {"budget": Budget(macs=0.1), "search": "exact", "importance": "magnitude", "kinds": "layer"},
        "one of output_divergence, cross_entropy for search='exact', .* but got 'magnitude'. Use",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_explained_and_changes_nothing(case: str) -> None:
    arguments, message = BAD[case]
    model = build("timm").train()
    with unchanged(model), pytest.raises(ValueError, match=message):
        plan_depth(model, **{"batches": batches_of("timm"), **arguments})


def test_generator_is_read_once() -> None:
    plan = plan_depth(build("timm"), remove={"attention": 1}, batches=iter(batches_of("timm")))
    assert plan == plan_depth(build("timm"), remove={"attention": 1}, batches=batches_of("timm"))


def with_infinite_outputs() -> nn.Module:
    model = build("timm")
    with torch.no_grad():
        model.head.weight.fill_(3e38)
    return model


@pytest.mark.parametrize(
    ("kind", "search"), one_in(4, itertools.product(["attention", "layer"], [None, "greedy", "one_shot"]))
)
def test_outputs_that_overflow_are_refused(kind: str, search: str | None) -> None:
    with pytest.raises(ValueError, match=r"finite importances from 'output_divergence', but (\d+) of \1 are not"):
        plan_depth(with_infinite_outputs(), remove={kind: 1}, batches=batches_of("timm"), replace="zero", search=search)


def test_outputs_that_overflow_are_refused_before_stand_ins_are_fitted() -> None:
    with pytest.raises(ValueError, match="Expected finite outputs on the calibration batches, but got NaN or infinity"):
        plan_depth(with_infinite_outputs(), remove={"attention": 1}, batches=batches_of("timm"))


def test_model_without_units_of_a_kind_says_so() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    with unchanged(model), pytest.raises(ValueError, match="Expected Sequential to have units of kind attention that"):
        plan_depth(model, remove={"attention": 1}, batches=batches_of("timm"))


def test_gated_feed_forward_says_why_it_has_no_activation() -> None:
    message = "to have removable activations, but its MLP is gated.*Use 'attention' or 'mlp'"
    with pytest.raises(ValueError, match=message):
        plan_depth(build("llama"), remove={"activation": 1}, batches=batches_of("llama"))


@pytest.mark.parametrize(("importance", "loss"), [("block_influence", None), ("gate_gradient", next_token_loss)])
def test_importances_that_read_ends_of_branches_need_a_supported_family(importance: str, loss: Any) -> None:
    """Blocks have theirs anywhere: a module that takes the stream and gives it."""
    model = OTHERS["gptj"].build()
    how: dict[str, Any] = {"batches": [tiny_inputs("gptj")], "importance": importance, "loss": loss}
    with pytest.raises(ValueError, match=f"Expected whole blocks for importance='{importance}' in GPTJForCausalLM"):
        plan_depth(model, remove={"attention": 1}, **how)
    assert len(plan_depth(model, remove={"block": 1}, **how).removed["block"]) == 1
