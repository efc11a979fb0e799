"""Names in `ignore` are those of the dense network, for units of depth and groups of width alike."""

from __future__ import annotations

import pytest
from cases.shared_budget.networks import images, vit

from prunerecover.session.session import Session
from prunerecover.shared_budget.arguments import SharedBudgetConfig
from prunerecover.shared_budget.planner import SharedBudgetPlanner


@pytest.mark.slow
def test_groups_keep_their_names_when_blocks_move_up() -> None:
    config = SharedBudgetConfig(kinds=("block", "neuron"), ignore=("blocks.1*", "blocks.2.*"))
    plan = SharedBudgetPlanner(Session(vit(depth=4), images(1)), "macs", config).together(0.192, 0.32)
    assert plan.removed["block"]
    assert not [name for name in plan.removed["block"] if name == "blocks.1"]
    assert plan.removed["neuron"]
    assert not [name for name in plan.removed["neuron"] if name.startswith(("blocks.1", "blocks.2"))]


def test_a_pattern_may_match_depth_alone_or_width_alone() -> None:
    config = SharedBudgetConfig(kinds=("attention", "neuron"), ignore=("blocks.0.attn", "blocks.1.mlp.fc1"))
    plan = SharedBudgetPlanner(Session(vit(depth=2), images(1)), "macs", config).together(0.1, 0.2)
    assert plan.removed["attention"] == ("blocks.1.attn",)
    assert {name.partition("[")[0] for name in plan.removed["neuron"]} == {"blocks.0.mlp.fc1"}
