"""Stations are the last linears of branches that add to a stream, and show what a forward pass computes there."""

from __future__ import annotations

import pytest
import torch
from cases.planning.networks import Residual, images
from cases.planning.planners import vit_planner
from torch import nn

from prunerecover.calibration.front_to_back import FrontToBack
from prunerecover.library.stations import seen_at
from prunerecover.library.variants import sites_of
from prunerecover.model.batches import ModelInputs
from prunerecover.planning.arguments import PruningConfig
from prunerecover.planning.planner import Planner
from prunerecover.session.session import Session

pytestmark = pytest.mark.slow


def test_each_branch_of_a_vit_has_one() -> None:
    readers = [station.reader for station in vit_planner().library.stations]
    assert readers == [f"blocks.{n}.{path}" for n in range(2) for path in ("attn.proj", "mlp.fc2")]


def test_what_is_seen_is_what_a_pass_computes() -> None:
    planner = vit_planner()
    model, station = planner.session.model, planner.library.stations[1]
    batch = ModelInputs((images()[0][0],))
    block = model.blocks[0]  # type: ignore[index]
    seen: dict[str, torch.Tensor] = {}
    with planner.session.evaluating(), torch.no_grad():
        handle = block.register_forward_hook(lambda _, __, output: seen.update(out=output))  # type: ignore[union-attr]
        model(*batch.args)
        handle.remove()
        found = seen_at(FrontToBack(model, [batch]), station, batch)
    assert found is not None
    assert torch.equal(found.total, seen["out"].flatten(0, 1))
    mlp = block.mlp  # type: ignore[union-attr]
    torch.testing.assert_close(mlp.fc2(found.read), found.given)  # type: ignore[operator, union-attr]
    torch.testing.assert_close(mlp(found.entered), found.given)  # type: ignore[operator]


def test_convolutions_have_none() -> None:
    torch.manual_seed(0)
    body = [nn.Conv2d(3, 8, 3), *(Residual(8) for _ in range(2)), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    planner = Planner(Session(nn.Sequential(*body, nn.Linear(8, 4)).eval(), images()), "macs", PruningConfig())
    with planner.session.evaluating():
        assert not planner.library.stations
    assert sites_of((), (), {}, {}) == ()
