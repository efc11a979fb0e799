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


def test_dimensions_are_followed_through_odd_networks() -> None:
    torch.manual_seed(0)
    net, x = stirred(Odd()), images(4)
    found = find_groups(net, x)
    assert {(g.name, g.size) for g in found.groups} == {
        ("stem", 2),  # a unit is one of the two groups of `grouped`, with two of the four of the norm
        ("mix", 3),
        ("up", 6),
        ("gate", 10),
        ("middle", 14),
    }
    keep = thirty_percent(found)
    with torch.no_grad():
        assert_equal(outputs(narrowed(net, found, keep), x), outputs(masked(net, found, keep), x))


FIXED = {
    "view": lambda y: y.view(y.shape[0], 8, -1).mean(-1),
    "position": lambda y: y.mean((2, 3)) + y[:, 5:6].mean((2, 3)),
    "part": lambda y: torch.cat([y[:, :3], y[:, 3:]], 1).mean((2, 3)),
    "order": lambda y: y.mean((2, 3)).sort(1).values,
    "softmax": lambda y: y.mean((2, 3)).softmax(1),
    "constant": lambda y: y.mean((2, 3)) * torch.arange(8.0),
    "rows": lambda y: y.mean((2, 3)).index_fill(1, torch.tensor([2]), 0.0),
}


class Fixed(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 1), nn.Linear(8, 6)
        self.third, self.how = nn.Linear(6, 2), how

    def forward(self, x: Tensor) -> Tensor:
        return self.third(self.second(FIXED[self.how](self.first(x))).relu())


@pytest.mark.parametrize("how", FIXED)
def test_what_code_fixes_is_left_out(how: str) -> None:
    found = find_groups(Fixed(how), images(4).float())
    assert [(g.name, g.kind) for g in found.groups] == [("second", "neuron")]


@pytest.mark.parametrize("statistic", ["max", "min"])
def test_extremes_over_positions_leave_the_channels_free(statistic: str) -> None:
    """Attention with sinks subtracts the largest logit of each query."""

    class Extreme(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Conv2d(3, 8, 1), nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            y = self.first(x).flatten(2)
            return self.last(getattr(y, statistic)(-1).values + getattr(y, f"arg{statistic}")(-1))

    net, x = stirred(Extreme()), images(4)
    found = find_groups(net, x)
    assert {(g.name, g.size) for g in found.groups} == {("first", 8)}
    keep = thirty_percent(found)
    with torch.no_grad():
        assert_equal(outputs(narrowed(net, found, keep), x), outputs(masked(net, found, keep), x))


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
def test_wrapped_models_have_the_same_groups(wrap: Any) -> None:
    model, inputs = built("vgg")
    assert find_groups(wrap(model), inputs) == found_in("vgg")


def test_every_form_of_batch_is_taken() -> None:
    model, inputs = built("vgg")
    for batch in ((inputs, torch.zeros(2)), {"x": inputs}, ModelInputs((inputs,))):
        assert find_groups(model, batch) == found_in("vgg")


def test_ignored_groups_stay() -> None:
    model, inputs = built("option_a_resnet20")
    found = find_groups(model, inputs, ignore=("layer3.*", "conv1"))
    assert found.groups
    assert not any(g.name.startswith("layer3") or g.name == "conv1" for g in found.groups)
    assert find_groups(model, inputs, ignore="layer3.*").rewrites == found_in("option_a_resnet20").rewrites


def test_rewrites_that_no_group_needs_are_not_made() -> None:
    model, inputs = built("option_a_resnet20")
    assert find_groups(model, inputs, ignore=("conv1", "layer?.0.conv2")).rewrites == ()


def test_unknown_kinds_are_refused() -> None:
    with pytest.raises(ValueError, match="Expected kinds among channel, .*, expert, hidden, but got 'filter'"):
        find_groups(nn.Linear(2, 2), torch.zeros(1, 2), kinds=("filter",))


def test_patterns_that_match_nothing_are_refused() -> None:
    model, inputs = built("vgg")
    with pytest.raises(ValueError, match=r"Expected argument ignore to match .*features.0, but 'layer9\.\*' matches"):
        find_groups(model, inputs, ignore=("layer9.*",))


def test_models_without_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="Linear to have groups of kind channel, head, neuron, but it has none"):
        find_groups(nn.Linear(2, 2), torch.zeros(1, 2))


def test_missing_kinds_are_told_with_what_there_is() -> None:
    model, inputs = built("vgg")
    with pytest.raises(ValueError, match="groups of kind head, but it has 3 of kind channel, 2 of kind neuron"):
        find_groups(model, inputs, kinds="head")


def test_operations_that_are_not_understood_are_named() -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 2))
    net.insert(1, Sorting())
    with pytest.raises(ValueError, match="What keeps them: .* by sort"):
        find_groups(net, torch.zeros(1, 4))


class Sorting(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sort(-1).values


def test_examples_that_the_model_cannot_run_are_refused() -> None:
    with pytest.raises(ValueError, match="Expected example_inputs that VGG can be called with, .* raised RuntimeError"):
        find_groups(built("vgg")[0], torch.zeros(1, 4))
