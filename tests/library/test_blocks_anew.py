"""Layers before removed blocks, fitted again for new weights, lead to the stream behind the blocks."""

from __future__ import annotations

import copy

import pytest
import torch
from cases.planning.networks import images, vit
from library.test_blocks import planner, stream_behind
from torch import Tensor, nn

from prunerecover.apply import apply_plan, refit_plan
from prunerecover.model.batches import Batches
from prunerecover.plan.edits import Refit
from prunerecover.plan.plan import Plan


def plan_without(*blocks: str) -> Plan:
    """Return the plan of a library for a tiny ViT without some blocks."""
    plans = planner()
    with plans.session.evaluating():
        chosen, _ = plans.library.walks.walk(plans.library.chosen(dict.fromkeys(blocks, "zero")))
        return plans.plan(chosen, 0.0)


def missed(dense: nn.Module, plan: Plan, blocks: tuple[str, ...], x: Tensor, refit: Batches | None) -> float:
    """Return the error of the pruned stream, relative to the dense stream behind the removed blocks."""
    pruned = copy.deepcopy(dense)
    apply_plan(pruned, plan, refit=refit)
    wanted = stream_behind(dense, blocks[-1], x)
    return float((stream_behind(pruned, "blocks.0", x) - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("blocks", [("blocks.1",), ("blocks.1", "blocks.2")])
def test_a_refit_for_other_weights_is_as_near_as_the_refit_of_a_new_plan(blocks: tuple[str, ...]) -> None:
    plan, dense, x = plan_without(*blocks), vit(init_values=0.5).eval(), torch.cat([image for image, _ in images(6)])
    assert [edit.unit for edit in plan.edits if isinstance(edit, Refit)] == ["blocks.0.mlp.fc2"]
    own = missed(dense, plan, blocks, x, None)
    assert missed(dense, plan, blocks, x, images(6)) <= 1.01 * own
    with torch.no_grad():
        for parameter in dense.blocks[0].mlp.parameters():
            parameter.mul_(1.5)
    left = missed(dense, refit_plan(dense, plan, images(6)), blocks, x, None)
    kept = {"weight": dense.blocks[0].mlp.fc2.weight, "bias": dense.blocks[0].mlp.fc2.bias}
    (edit,) = [edit for edit in plan.edits if isinstance(edit, Refit)]
    unfitted = refit_plan(dense, plan, images(6)).with_tensors(
        {key: kept[name].detach() for name, key in zip(edit.names, edit.tensors, strict=True)}
    )
    assert left < 0.8 * missed(dense, unfitted, blocks, x, None)
