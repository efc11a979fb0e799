"""Channels of convolutions are removed in the order in which the remaining ones compensate best."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cases.planning.networks import Residual, images
from torch import Tensor, nn
from torch.nn import functional as F

from prunerecover import Budget, plan_width
from prunerecover.calibration.moments import RIDGE
from prunerecover.model.batches import ModelInputs
from prunerecover.session.session import Session
from prunerecover.width.arguments import WidthConfig
from prunerecover.width.channel_order import channel_orders
from prunerecover.width.narrowable import NarrowableNetwork

CHANNELS, OUTPUTS = 6, 4


def network(**arguments: Any) -> nn.Sequential:
    """Return a convolution on six channels, with a BatchNorm on the outputs."""
    torch.manual_seed(0)
    reader, norm = nn.Conv2d(CHANNELS, OUTPUTS, 3, **arguments), nn.BatchNorm2d(OUTPUTS)
    with torch.no_grad():
        for values in (norm.running_mean, norm.bias):
            values.normal_()  # type: ignore[union-attr]
        for values in (norm.running_var, norm.weight):
            values.uniform_(0.2, 3)  # type: ignore[union-attr]
    body = (nn.Conv2d(3, CHANNELS, 3), nn.BatchNorm2d(CHANNELS), nn.ReLU(), reader, norm, nn.ReLU())
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(OUTPUTS, 4)).eval()


def orders(model: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    session = Session(model, batches)
    groups = NarrowableNetwork(session, WidthConfig()).groups_as_they_are
    return channel_orders(session, groups, [ModelInputs((x,)) for x, _ in batches])


@torch.no_grad()
def by_trials(model: nn.Sequential, batches: list[tuple[Tensor, Tensor]], **arguments: Any) -> list[int]:
    """Return the order of removal by trying all channels, each time by least squares on unfolded patches."""
    reader: Any = model[3]
    norm: Any = model[4]
    read = model[:3](torch.cat([x for x, _ in batches]))
    rows = F.unfold(read, 3, **arguments).transpose(1, 2).flatten(0, 1).double()
    rows = rows - rows.mean(0)
    scale = norm.weight / (norm.running_var + norm.eps).sqrt()
    weight = (scale[:, None] * reader.weight.flatten(1)).double()
    penalty = (RIDGE[0] + RIDGE[1] * rows.shape[1] / len(rows)) * rows.var(0, correction=0).mean() * len(rows)
    rows = torch.cat([rows, penalty.sqrt() * torch.eye(rows.shape[1]).double()])

    def lost(gone: list[int]) -> float:
        kept = torch.tensor([n for n in range(rows.shape[1]) if n // 9 not in gone])
        found = torch.linalg.lstsq(rows[:, kept], rows @ weight.T).solution
        return float((rows @ weight.T - rows[:, kept] @ found).square().sum())

    gone: list[int] = []
    while len(gone) < CHANNELS - 1:
        gone.append(min(set(range(CHANNELS)) - {*gone}, key=lambda one: lost([*gone, one])))
    return [*gone, *(set(range(CHANNELS)) - {*gone})]


@pytest.mark.parametrize("arguments", [{}, {"stride": 2, "padding": 1}, {"dilation": 2, "padding": 2}])
def test_the_first_to_go_are_those_that_least_squares_misses_least(arguments: dict[str, Any]) -> None:
    model = network(**arguments)
    (order,) = orders(model, images(4)).values()
    assert order.argsort().tolist() == by_trials(model, images(4), **arguments)


@pytest.mark.parametrize("groups", [2, CHANNELS])
def test_grouped_convolutions_have_no_order(groups: int) -> None:
    torch.manual_seed(0)
    body = (nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 6, 3, groups=groups), nn.BatchNorm2d(6))
    model = nn.Sequential(*body, nn.ReLU(), nn.Conv2d(6, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    found = NarrowableNetwork(Session(model, images()), WidthConfig())
    assert [*orders(model, images())] == [g.name for g in found.groups if g.name != "0" or groups == CHANNELS]


def resnet(norm: type[nn.Module] = nn.BatchNorm2d) -> nn.Sequential:
    torch.manual_seed(0)
    body = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), Residual(8), Residual(8)]
    network = nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    if norm is nn.GroupNorm:
        network[1] = nn.GroupNorm(1, 8)
        for block in (network[3], network[4]):
            block.norms = nn.ModuleList(nn.GroupNorm(1, 8) for _ in range(2))
    with torch.no_grad():
        for _ in range(30):
            network.train()(torch.randn(16, 3, 16, 16))  # statistics are those of what enters
    return network.eval()


def test_streams_that_several_layers_read_have_no_order() -> None:
    assert [*orders(resnet(), images())] == ["3.first", "4.first"]


@pytest.mark.slow
@pytest.mark.parametrize(("norm", "replace"), [(nn.GroupNorm, "calibrated"), (nn.BatchNorm2d, "zero")])
def test_gate_taylor_says_what_goes_where_nothing_is_made_good(norm: type[nn.Module], replace: Any) -> None:
    by_default, named = (
        plan_width(resnet(norm), Budget(macs=0.4), batches=images(4), importance=one, replace=replace)
        for one in (None, "gate_taylor")
    )
    assert [edit.model_dump() for edit in by_default.edits] == [edit.model_dump() for edit in named.edits]
