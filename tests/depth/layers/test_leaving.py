"""Layers around tensors that code cuts in equal parts are taken out: as many units leave each part."""

from __future__ import annotations

import random

import pytest
import torch
from cases.depth.removal import parameters_left
from cases.models.cut_in_parts import Halves, c2f_network
from cases.models.width import images, stirred
from cases.sampling import one_in
from cases.width.groups import assert_equal, outputs
from torch import Tensor, nn

from prunerecover.depth.layers.pruned_graph import NotRemovable, PrunedGraph
from prunerecover.depth.layers.widths import Widths
from prunerecover.graph.layers import list_layers
from prunerecover.graph.trace import trace_graph
from prunerecover.model.batches import as_inputs
from prunerecover.model.copies import deep_copy
from prunerecover.plan.edits import Narrow
from prunerecover.surgery.apply_edits import apply_edits
from prunerecover.width.groups.discovery import find_groups

X = images(4)


def prepared(net: nn.Module) -> tuple[PrunedGraph, tuple[str, ...]]:
    graph = trace_graph(net, as_inputs(X))
    found = find_groups(net, X)
    widths = Widths.of(net, found.groups, linked=found.linked)
    return PrunedGraph(net, graph, widths), tuple(list_layers(net, graph).offered)


def masked(net: nn.Module, edits: list[Narrow]) -> nn.Module:
    """Set what makes the units that edits remove to zero, one edit after the other."""
    twin = deep_copy(net)
    tensors = {**dict(twin.named_parameters()), **dict(twin.named_buffers())}
    left: dict[tuple[str, int], Tensor] = {}
    for edit in edits:
        gone = torch.tensor([unit for unit in range(edit.of) if unit not in edit.keep])
        for part in edit.group:
            tensor = tensors[part.tensor]
            own = left.setdefault((part.tensor, part.dim), torch.arange(tensor.shape[part.dim]))
            index = part.indices(gone)
            if part.makes:
                tensor.data.index_fill_(part.dim, own[index], 0)
            stays = torch.ones(len(own), dtype=torch.bool).index_fill_(0, index, False)
            left[part.tensor, part.dim] = own[stays]
    return twin


def assert_runs_as_predicted(net: nn.Module, state: PrunedGraph) -> None:
    pruned = deep_copy(net)
    apply_edits(pruned, [*state.edits, *state.finishing()])
    sum(out.sum() for out in outputs(pruned, X)).backward()
    assert sum(p.numel() for p in pruned.parameters()) == parameters_left(state)


def assert_narrowed_is_masked(net: nn.Module, state: PrunedGraph) -> None:
    edits = [edit for edit in state.edits if isinstance(edit, Narrow)]
    assert edits
    narrowed = deep_copy(net)
    apply_edits(narrowed, edits)
    with torch.no_grad():
        assert_equal(outputs(narrowed, X), outputs(masked(net, edits), X))


def test_every_layer_around_equal_parts_can_go_and_linked_units_that_leave_with_it_are_masked() -> None:
    net = stirred(c2f_network())
    start, layers = prepared(net)
    linked = {"1.cv1.conv", "1.cv2.conv", "2.cv1.conv", "2.cv2.conv"}
    assert linked <= set(layers)
    for layer in layers:
        state = start.copy()
        state.prune(layer)
        assert_runs_as_predicted(net, state)
        if layer in linked:
            assert_narrowed_is_masked(net, state)


@pytest.mark.parametrize("parts", [2, 4])
def test_strata_that_leave_with_a_layer_are_masked(parts: int) -> None:
    net = stirred(Halves(lambda x: x.chunk(parts, 1)))
    state, _ = prepared(net)
    state.prune("second")
    assert_narrowed_is_masked(net, state)
    assert_runs_as_predicted(net, state)


@pytest.mark.parametrize("seed", one_in(3, range(3)))
def test_layers_go_one_after_the_other(seed: int) -> None:
    net = stirred(c2f_network())
    state, layers = prepared(net)
    taken = 0
    for layer in random.Random(seed).sample(layers, len(layers)):
        trial = state.copy()
        try:
            trial.prune(layer)
        except NotRemovable:
            continue
        state, taken = trial, taken + 1
        assert_runs_as_predicted(net, state)
    assert taken >= 5


def test_a_layer_between_fixed_parts_is_refused_and_nothing_is_changed() -> None:
    class Fixed(nn.Module):
        """The first half is what the network returns."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.cut, self.last = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 16, 1), nn.Conv2d(8, 2, 1)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            left, right = self.cut(self.first(x).relu()).chunk(2, 1)
            return left, self.last(right)

    state, _ = prepared(Fixed().double())
    before = parameters_left(state)
    with pytest.raises(NotRemovable, match="10 of the 16 units on the wider side of 'cut' to be removable, but 0"):
        state.prune("cut")
    assert parameters_left(state) == before
    assert state.edits == ()
