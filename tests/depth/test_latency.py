"""A share of the latency, with a clock that counts parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases.depth.architectures import ARCHITECTURES
from cases.depth.clock import counts_parameters, parameters_left
from cases.depth.removal import removals_of
from cases.engine import batches_of, build, unchanged
from cases.models.tiny import tiny_images, tiny_timm
from cases.planning.networks import Plain
from torch import nn

import prunerecover.surgery.saved_cost as saved_cost
from prunerecover import Budget, plan_depth
from prunerecover.cost.met_share import TRIES
from prunerecover.depth.layers.pruned_graph import NotRemovable
from prunerecover.model.batches import ModelInputs

SAMPLES = 2 * saved_cost.TIMED
IMAGES = [tiny_images(SAMPLES)]


def convolutions(blocks: int = 5) -> nn.Module:
    """Blocks that no family describes."""
    torch.manual_seed(0)
    body = [nn.Conv2d(3, 8, 3), *(Plain(8) for _ in range(blocks)), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*body, nn.Linear(8, 4)).eval()


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, float]]:
    return counts_parameters(monkeypatch)


def test_it_is_found_by_bisection(timed: list[tuple[int, float]]) -> None:
    model = build("timm")
    with unchanged(model):
        plan = plan_depth(model, Budget(latency=0.4), batches=batches_of("timm"), replace="zero", search="one_shot")
    asked = [left for _, left in timed]
    assert min(a for a in asked if 1 - a >= 0.4) <= 0.6
    assert 1 - plan.result.params / sum(p.numel() for p in model.parameters()) > 0
    assert len(asked) <= 6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "kinds", "how"),
    [
        (tiny_timm, ("attention", "mlp"), {"replace": "zero"}),
        (convolutions, ("layer", "block"), {}),
        (convolutions, ("block",), {}),
    ],
    ids=["family", "layers and blocks", "blocks"],
)
def test_kinds_are_timed_on_few_samples_and_what_is_planned_on_all(
    timed: list[tuple[int, float]], make: Callable[[], nn.Module], kinds: tuple[str, ...], how: dict[str, Any]
) -> None:
    model = make()
    plan = plan_depth(model, Budget(latency=0.4), batches=IMAGES, kinds=kinds, search="greedy", **how)
    few = [left for samples, left in timed if samples == saved_cost.TIMED]
    assert len(few) == len(kinds), "each kind once"
    tried = [left for samples, left in timed if samples == SAMPLES]
    assert len(tried) <= TRIES + 1
    left = parameters_left(model, plan)
    assert left in [pytest.approx(one) for one in tried], "what is returned was measured"
    assert left <= 0.61 + 1e-6


@pytest.mark.slow
def test_the_real_clock_runs() -> None:
    model = build("timm")
    plan = plan_depth(model, Budget(latency=0.01), batches=batches_of("timm"), replace="zero", kinds="attention")
    assert plan.edits


def test_a_kind_of_one_unit_is_timed(timed: list[tuple[int, float]]) -> None:
    plan = plan_depth(convolutions(2), Budget(latency=0.3), batches=IMAGES, kinds="block", ignore=["1"])
    assert plan.removed == {"block": ("2",)}
    assert timed


@pytest.mark.slow
def test_a_kind_whose_first_unit_stays_is_timed(timed: list[tuple[int, float]]) -> None:
    """Widths around its first layer cannot follow."""
    removals = removals_of(*ARCHITECTURES["1-d"]())
    first = next(unit for unit in removals.units if unit.kind == "layer")
    with pytest.raises(NotRemovable):
        removals.edits([first])
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randn(SAMPLES, *arg.shape[1:], generator=generator) for arg in removals.example.args]
    plan = plan_depth(removals.model, Budget(latency=0.25), batches=[ModelInputs(tuple(inputs))], kinds="layer")
    assert plan.removed["layer"]
    assert parameters_left(removals.model, plan) <= 0.76
