"""A share of the latency, of networks that no family describes, with a clock that counts parameters."""

from __future__ import annotations

import pytest
import torch
from cases.depth.architectures import ARCHITECTURES
from cases.depth.clock import counts_parameters, parameters_left
from cases.depth.removal import removals_of
from cases.planning.networks import Plain
from torch import nn

import prunerecover.surgery.saved_cost as saved_cost
from prunerecover import Budget, plan_depth
from prunerecover.cost.met_share import TRIES
from prunerecover.depth.layers.pruned_graph import NotRemovable
from prunerecover.model.batches import ModelInputs

SAMPLES = 2 * saved_cost.TIMED


def network(blocks: int = 5) -> nn.Module:
    torch.manual_seed(0)
    body = [nn.Conv2d(3, 8, 3), *(Plain(8) for _ in range(blocks)), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*body, nn.Linear(8, 4)).eval()


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, float]]:
    return counts_parameters(monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [("layer",), ("layer", "block"), ("block",)])
def test_a_search_by_name_times_kinds_and_what_is_planned_and_not_every_set(
    timed: list[tuple[int, float]], kinds: tuple[str, ...]
) -> None:
    model, images = network(), torch.randn(SAMPLES, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    plan = plan_depth(model, Budget(latency=0.4), batches=[images], kinds=kinds, search="greedy")
    assert len([left for samples, left in timed if samples == saved_cost.TIMED]) == len(kinds)
    tried = [left for samples, left in timed if samples == SAMPLES]
    assert len(tried) <= TRIES + 1
    left = parameters_left(model, plan)
    assert left in [pytest.approx(one) for one in tried], "what is returned was measured"
    assert left <= 0.61


def test_a_kind_of_one_unit_is_timed(timed: list[tuple[int, float]]) -> None:
    model, images = network(blocks=2), torch.randn(SAMPLES, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    plan = plan_depth(model, Budget(latency=0.3), batches=[images], kinds="block", ignore=["1"])
    assert plan.removed == {"block": ("2",)}
    assert timed


@pytest.mark.slow
@pytest.mark.parametrize("name", ["post-norm", "1-d"])
def test_a_kind_whose_first_unit_stays_is_timed(timed: list[tuple[int, float]], name: str) -> None:
    """Widths around its first layer cannot follow."""
    removals = removals_of(*ARCHITECTURES[name]())
    first = next(unit for unit in removals.units if unit.kind == "layer")
    with pytest.raises(NotRemovable):
        removals.edits([first])
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randn(SAMPLES, *arg.shape[1:], generator=generator) for arg in removals.example.args]
    plan = plan_depth(removals.model, Budget(latency=0.25), batches=[ModelInputs(tuple(inputs))], kinds="layer")
    assert plan.removed["layer"]
    assert parameters_left(removals.model, plan) <= 0.76
