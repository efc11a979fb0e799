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
from prunerecover.planning.arguments import PruningConfig
from prunerecover.planning.planner import Planner
from prunerecover.session.session import Session


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


class Residual(nn.Module):
    """Two linears beside a stream."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.first, self.second = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Add the branch."""
        return x + self.second(nn.functional.gelu(self.first(self.norm(x))))  # type: ignore[no-any-return]


def residuals() -> nn.Module:
    """Return a network of four blocks that only the graph shows."""
    torch.manual_seed(0)
    blocks = nn.Sequential(*(Residual(16) for _ in range(4)))
    return nn.Sequential(nn.Linear(12, 16), blocks, nn.LayerNorm(16), nn.Linear(16, 5)).eval()


@pytest.mark.parametrize("block", ["zero", "affine"])
@pytest.mark.parametrize("narrowed", ["1.0.first", "1.1.first"], ids=["earlier", "right before"])
def test_with_the_same_weights_a_refit_is_about_as_near_the_output_as_the_plan(block: str, narrowed: str) -> None:
    x = torch.randn(8, 64, 12, generator=torch.Generator().manual_seed(1))
    model, batches = residuals(), list(x.split(2))

    def loss(network: nn.Module, batch: Tensor) -> Tensor:
        return network(batch).square().mean()  # type: ignore[no-any-return]

    plans = Planner(Session(model, batches, loss=loss), "macs", PruningConfig(loss=loss))
    with plans.session.evaluating():
        sites = plans.library.sites
        gone = next(variant.name for variant in sites["1.2"].variants if variant.leaves.startswith(block))
        half = next(variant.name for variant in sites[narrowed].variants if variant.name.startswith("32 of"))
        chosen, _ = plans.library.walks.walk(plans.library.chosen({narrowed: half, "1.2": gone}))
        plan = plans.plan(chosen, 0.0)
    apart = []
    for one in (plan, refit_plan(model, plan, batches)):
        pruned = copy.deepcopy(model)
        apply_plan(pruned, one)
        apart.append(float((pruned(x) - model(x)).norm()))
    assert apart[1] < 1.1 * apart[0]
