"""Names in `ignore` are the dense network's, for units of depth and groups of width alike."""

from __future__ import annotations

import pytest
from cases.planning.networks import images, vit
from cases.planning.plans import plan_with

from prunerecover import apply_plan
from prunerecover.planning.arguments import PruningConfig
from prunerecover.planning.planner import Planner
from prunerecover.session.session import Session


@pytest.mark.slow
def test_groups_keep_their_names_when_blocks_move_up() -> None:
    config = PruningConfig(kinds=("block", "neuron"), ignore=("blocks.1*", "blocks.2.*"))
    planner = Planner(Session(vit(depth=4), images(1)), "macs", config)
    assert "blocks.1" not in planner.library.sites
    plan = plan_with(planner, {"blocks.0": "zero", "blocks.3.mlp.fc1": "32 of 64 neurons"})
    assert plan.removed["block"] == ("blocks.0",)
    assert {name.partition("[")[0] for name in plan.removed["neuron"]} == {"blocks.3.mlp.fc1"}
    assert not [name for name in planner.library.sites if name.startswith(("blocks.1.", "blocks.2."))]
    model = vit(depth=4)
    apply_plan(model, plan)
    assert [block.mlp.fc1.out_features for block in model.blocks] == [64, 64, 32]


@pytest.mark.slow
def test_a_pattern_may_match_depth_alone_or_width_alone() -> None:
    config = PruningConfig(kinds=("attention", "neuron"), ignore=("blocks.0.attn", "blocks.1.mlp.fc1"))
    planner = Planner(Session(vit(depth=2), images(1)), "macs", config)
    assert set(planner.library.sites) == {"blocks.1.attn", "blocks.0.mlp.fc1"}
