"""Dimensions left out of groups, and refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cases.models.width import images, stirred
from cases.width.groups import assert_equal, built, found_in, outputs
from cases.width.oracle import masked, narrowed, rewritten, thirty_percent
from torch import Tensor, nn
from torch.nn import functional as F

from prunerecover.model.batches import ModelInputs
from prunerecover.width.groups.discovery import find_groups


class Odd(nn.Module):
    """Network with many ways in which dimensions meet."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.GroupNorm(4, 8)
        self.act = nn.PReLU(8)
        self.twice = nn.Conv2d(8, 16, 3, padding=1, groups=8)
        self.grouped = nn.Conv2d(16, 12, 1, groups=2)
        self.shared = nn.Conv2d(12, 12, 1)
        self.mix = nn.Conv2d(12, 12, 1)
        self.shuffle = nn.PixelShuffle(2)
        self.up = nn.ConvTranspose2d(3, 6, 2, stride=2)
        self.side = nn.Conv2d(3, 6, 1)
        self.gate = nn.Linear(6, 20)
        self.middle = nn.Linear(10, 14)
        self.last = nn.Linear(14, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.grouped(self.twice(self.act(self.norm(self.stem(x)))))
        y = self.shared(F.relu(self.shared(F.relu(y))))
        y = F.relu(self.up(self.shuffle(self.mix(y)))) + self.side(F.interpolate(x, scale_factor=4.0))
        y = y.flatten(2).transpose(1, 2).mean(1)
        value, gate = self.gate(y).chunk(2, -1)
        return self.last(torch.einsum("nd,kd->nk", value * F.silu(gate), self.middle.weight) + self.middle.bias)


def assert_masked_is_narrowed(net: nn.Module, expected: set[tuple[str, int]]) -> None:
    """Check the groups by name and size, and the outputs without 30% of their units."""
    net, x = stirred(net), images(4)
    found = find_groups(net, x)
    assert {(g.name, g.size) for g in found.groups} == expected
    keep = thirty_percent(found)
    with torch.no_grad():
        assert_equal(outputs(narrowed(net, found, keep), x), outputs(masked(net, found, keep), x))


def test_dimensions_are_followed_through_odd_networks() -> None:
    """A unit of the stem is one of the two groups of `grouped`, with two of the four of the norm."""
    torch.manual_seed(0)
    assert_masked_is_narrowed(Odd(), {("stem", 2), ("mix", 3), ("up", 6), ("gate", 10), ("middle", 14)})


def test_extremes_over_positions_leave_the_channels_free() -> None:
    """Attention with sinks subtracts the largest logit of each query."""

    class Extreme(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Conv2d(3, 8, 1), nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            y = self.first(x).flatten(2)
            return self.last(y.max(-1).values + y.argmax(-1) + y.min(-1).values + y.argmin(-1))

    assert_masked_is_narrowed(Extreme(), {("first", 8)})


@pytest.mark.parametrize("name", ["bottlenecks", "densenet", "option_a_resnet20"])
def test_groups_are_those_of_depgraph_where_it_works(name: str) -> None:
    """An independent program (arXiv 2301.12900) couples the same ends of the same layers."""
    tp = pytest.importorskip("torch_pruning")
    (model, inputs), found = built(name), found_in(name)
    net = rewritten(model, found)
    layers = {path: module for path, module in net.named_modules() if isinstance(module, nn.Conv2d | nn.Linear)}
    last = list(layers)[-1]
    graph = tp.DependencyGraph().build_dependency(net, inputs)
    paths = {module: path for path, module in layers.items()}
    theirs = {
        frozenset(
            (paths[dep.target.module], "out" if graph.is_out_channel_pruning_fn(dep.handler) else "in")
            for dep, _ in group
            if dep.target.module in paths
        )
        for group in graph.get_all_groups(root_module_types=[nn.Conv2d, nn.Linear])
    }
    ours = {
        frozenset(
            (path, "in" if s.dim else "out")
            for s in group.slices
            if (path := s.tensor.removesuffix(".weight")) in layers and s.tensor.endswith(".weight")
        )
        for group in found.groups
    }
    assert ours == {ends for ends in theirs if (last, "out") not in ends}


def test_what_no_sample_reaches_is_left_out() -> None:
    """Empty tensors, as of a detector without proposals, do not reveal their layout."""

    class Nothing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x[x.sum((1, 2, 3)) > float("inf")].flatten(1)

    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 6, 1), Nothing(), nn.Linear(96, 5), nn.Linear(5, 2))
    assert [g.name for g in find_groups(net, images(4).float()).groups] == ["0", "4"]


@pytest.mark.parametrize("wrap", [nn.DataParallel, lambda net: torch.compile(net, backend="eager")])
def test_wrapped_models_and_every_form_of_batch_have_the_same_groups(wrap: Any) -> None:
    model, inputs = built("vgg")
    for batch in (inputs, (inputs, torch.zeros(2)), {"x": inputs}, ModelInputs((inputs,))):
        assert find_groups(wrap(model), batch) == found_in("vgg")


def test_ignored_groups_stay() -> None:
    model, inputs = built("option_a_resnet20")
    found = find_groups(model, inputs, ignore=("layer3.*", "conv1"))
    assert found.groups
    assert not any(g.name.startswith("layer3") or g.name == "conv1" for g in found.groups)
    assert find_groups(model, inputs, ignore="layer3.*").rewrites == found_in("option_a_resnet20").rewrites
    assert find_groups(model, inputs, ignore=("conv1", "layer?.0.conv2")).rewrites == ()  # no group needs them


@pytest.mark.parametrize(
    ("example", "how", "message"),
    [
        (images(16), {"kinds": "filter"}, "Expected kinds among channel, .*, expert, hidden, but got 'filter'"),
        (images(16), {"kinds": "head"}, "groups of kind head, but it has 3 of kind channel, 2 of kind neuron"),
        (images(16), {"ignore": "layer9.*"}, r"argument ignore to match .*features.0, but 'layer9\.\*' matches"),
        (torch.zeros(1, 4), {}, "Expected example_inputs that VGG can be called with, .* raised RuntimeError"),
    ],
)
def test_arguments_that_do_not_fit_the_model_are_refused(example: Tensor, how: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find_groups(built("vgg")[0], example, **how)
