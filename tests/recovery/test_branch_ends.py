"""Layers at the ends of branches: found in any forward, and fitted to the missing part of the stream."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from prunerecover import apply_plan, plan_depth, reconstruct
from prunerecover.calibration.front_to_back import FrontToBack
from prunerecover.calibration.moments import Moments
from prunerecover.model.batches import ModelInputs
from prunerecover.recovery.branch_ends import NO_NORM, at_end, branch_ends
from prunerecover.recovery.reconstruction import _add_behind


class Branches(nn.Module):
    """A shortcut with a layer, a branch of two layers, and layers outside branches."""

    def __init__(self, add: str) -> None:
        super().__init__()
        self.add = add
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.short, self.last = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 1)
        self.norm, self.last_norm = nn.BatchNorm2d(8), nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        y, other = self.norm(self.second(F.relu(self.first(x)))), self.short(x)
        if self.add == "in place":
            y += other
        elif self.add == "into the other":
            other += y
            y = other
        else:
            y = torch.add(y, other) if self.add == "function" else y + other
        return F.relu(self.last_norm(self.last(F.relu(y))), inplace=True) + 1


IMAGES = torch.randn(6, 3, 5, 5, generator=torch.Generator().manual_seed(1))
LAYERS = ("first", "second", "short", "last")


@pytest.mark.parametrize("add", ["operator", "function", "in place", "into the other"])
@torch.no_grad()
def test_ends_are_found_with_the_norm_behind_them(add: str) -> None:
    torch.manual_seed(0)
    network, inputs = Branches(add).eval(), ModelInputs((IMAGES,))
    assert branch_ends(network, LAYERS, inputs) == {"second": "norm", "short": NO_NORM}
    expected = network.norm(network.second(F.relu(network.first(IMAGES)))) + network.short(IMAGES)
    passes = FrontToBack(network, [inputs])
    for path, norm in (("second", "norm"), ("short", NO_NORM)):
        torch.testing.assert_close(at_end(passes, path, norm, inputs)[0][1], expected)
    torch.testing.assert_close(at_end(passes, "second", "norm", inputs)[0][0], F.relu(network.first(IMAGES)))
    assert not any(module._forward_hooks for module in network.modules())


def starting(net: Any, x: Tensor) -> Tensor:
    """Have a branch read and update a stream that is a layer's own output."""
    x = net.short(x)
    return x + net.norm(net.second(F.relu(x)))


def activated(net: Any, x: Tensor) -> Tensor:
    """Change an output in place before the addition."""
    return F.relu(net.norm(net.second(F.relu(net.first(x)))), inplace=True) + net.short(x)


def normed_twice(net: Any, x: Tensor) -> Tensor:
    """Put a second BatchNorm behind a layer's own, with a reader in between."""
    y = net.norm(net.second(F.relu(net.first(x))))
    return net.last_norm(y) + F.relu(net.last(y))


@pytest.mark.parametrize(
    ("forward", "ends"), [(starting, {"second": "norm"}), (activated, {"short": NO_NORM}), (normed_twice, {})]
)
@torch.no_grad()
def test_what_serves_others_too_is_no_end(forward: Any, ends: dict[str, str]) -> None:
    class Own(Branches):
        def forward(self, x: Tensor) -> Tensor:
            return forward(self, x)

    assert branch_ends(Own("operator").eval(), LAYERS, ModelInputs((IMAGES,))) == ends


class Step(nn.Module):
    """A linear step of two layers beside a shortcut."""

    def __init__(self, norm: bool = False) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.norm = nn.BatchNorm1d(6) if norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.norm(self.second(self.first(x)))


@pytest.mark.parametrize(("shape", "ends"), [((4, 6), {"second": "norm"}), ((4, 6, 6), {})])
def test_a_norm_over_tokens_is_not_over_the_outputs_of_a_layer(shape: tuple[int, ...], ends: dict[str, str]) -> None:
    assert branch_ends(Step(norm=True).eval(), ["second"], ModelInputs((torch.randn(shape),))) == ends


class OfATable(nn.Module):
    """A layer with a row per position, added to another layer's output for every sample."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.Sequential(*(Step() for _ in range(3)))
        self.table, self.last = nn.Linear(6, 4), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.table(torch.eye(6)[None]) + self.last(self.steps(x))


def test_a_sum_of_another_shape_is_no_stream() -> None:
    """A table with a row per position has the shape of the sum only for a single sample."""
    torch.manual_seed(0)
    dense, x = OfATable().eval(), torch.randn(9, 6, 6)
    with torch.no_grad():
        assert branch_ends(dense, ["table", "last"], ModelInputs((x,))) == {"last": NO_NORM}
    network = copy.deepcopy(dense)
    plan = plan_depth(dense, remove={"block": 1}, batches=[x], ignore=("steps.0", "steps.2"))
    apply_plan(network, plan)
    with torch.no_grad():
        lost = (network(x) - dense(x)).square().mean()
        reconstruct(network, dense, plan, [x[:1], x[1:]])
        assert (network(x) - dense(x)).square().mean() < 0.5 * lost


@pytest.mark.parametrize("spread", [1.0, 0.01])  # the latter's variance is near to eps
@torch.no_grad()
def test_a_linear_map_is_added_behind_batchnorm(spread: float) -> None:
    """Layer and norm return the former output plus the map of the layer's inputs, also in training mode."""
    torch.manual_seed(0)
    layer, norm = nn.Linear(5, 3).double(), nn.BatchNorm1d(3, momentum=None, eps=1e-3).double()
    x = spread * torch.randn(200, 5).double() + 1
    norm.weight.copy_(torch.tensor([0.5, 1.5, 2.0]))
    norm.bias.copy_(torch.tensor([1.0, 0.0, -1.0]))
    norm(layer(x))
    norm.eval()
    more, constant = torch.randn(3, 5).double(), torch.randn(3).double()
    moments = Moments()
    moments.add(x)
    layer.weight[2] = more[2] = 0  # an output that is dead, and stays so
    norm.running_mean[2], norm.running_var[2] = layer.bias[2], 0  # type: ignore[index]
    size, expected = layer.weight.norm(dim=1), norm(layer(x)) + x @ more.T + constant
    mean, variance = _add_behind(norm, layer, torch.cat([more, constant[:, None]], 1), moments)
    norm.running_mean.copy_(mean)  # type: ignore[union-attr]
    norm.running_var.copy_(variance)  # type: ignore[union-attr]
    torch.testing.assert_close(norm(layer(x)), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(norm.train()(layer(x)), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(layer.weight.norm(dim=1), size)
