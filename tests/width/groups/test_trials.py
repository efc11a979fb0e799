"""What can be narrowed alone is found in few trials, however many layers have sizes written out."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from cases.sampling import one_in
from torch import Tensor, nn

from prunerecover.width.groups.discovery import find_groups

LAYERS, WIDTH = 20, 12
Habit = Callable[[Tensor, list[Tensor]], Tensor]


class Chain(nn.Module):
    """Layers with habits: code that runs after some of them, given all outputs so far."""

    passes = 0  # of this network and all copies

    def __init__(self, habits: Mapping[int, Habit]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS + 1))
        self.habits = habits

    def forward(self, x: Tensor) -> Tensor:
        Chain.passes += 1
        seen: list[Tensor] = []
        for i, layer in enumerate(self.layers):
            seen.append(layer(seen[-1].relu() if seen else x))
            if i in self.habits:
                seen[-1] = self.habits[i](seen[-1], seen)
        return seen[-1]


def written_out(y: Tensor, seen: list[Tensor]) -> Tensor:
    """Code that has the width in it."""
    return y.view(-1, WIDTH)


def fours(y: Tensor, seen: list[Tensor]) -> Tensor:
    """Code that runs only if the width is a multiple of four."""
    return y.view(len(y), -1, 4).flatten(1)


def as_wide_as(before: int) -> Habit:
    """Code that runs only if what came `before` is at least as wide: it breaks when that is narrowed alone."""
    return lambda y, seen: y[:, : seen[-1 - before].shape[1]]


def found_in(net: Chain) -> list[int]:
    return [int(g.name.removeprefix("layers.")) for g in find_groups(net, torch.randn(2, WIDTH)).groups]


def all_but(*left_out: int) -> list[int]:
    return [i for i in range(LAYERS) if i not in left_out]


@pytest.mark.parametrize("fixed", one_in(2, [{7}, {0, 19}, {2, 3, 12}, {*range(0, 20, 2)}, {*range(19)}]), ids=len)
def test_layers_with_their_width_written_out_are_left_out_and_no_others(fixed: set[int]) -> None:
    assert found_in(Chain(dict.fromkeys(fixed, written_out))) == all_but(*fixed)


def test_one_layer_among_many_is_found_in_few_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Chain, "passes", 0)
    find_groups(Chain({7: written_out}), torch.randn(2, WIDTH))
    assert Chain.passes < 2 * LAYERS  # one by one: twice per layer, in evaluation and in training mode, and a few


def test_halves_of_tensors_that_code_cuts_up_are_left_out_and_no_others() -> None:
    class Halves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.left, self.right = nn.Linear(12, 12), nn.Linear(6, 12), nn.Linear(6, 12)

        def forward(self, x: Tensor) -> Tensor:
            left, right = self.first(x).chunk(2, 1)
            return self.left(left).relu() + self.right(right).sigmoid()

    net = nn.Sequential(*(Halves() for _ in range(6)), nn.Linear(12, 2))
    assert [g.name for g in find_groups(net, torch.randn(2, 12)).groups] == [f"{i}.left" for i in range(6)]


class Recurrence(nn.Module):
    """A recurrence that starts from a state of a fixed size where a next call is to go on from it."""

    def __init__(self, *, keeps: bool) -> None:
        super().__init__()
        self.enter, self.up, self.down, self.config_keeps = nn.Linear(4, 6), nn.Linear(6, 8), nn.Linear(8, 2), keeps

    def forward(self, x: Tensor, use_cache: bool = False) -> Tensor:
        hidden = self.enter(x)
        if use_cache and self.config_keeps:
            hidden = hidden + torch.zeros(len(x), 6)
        return self.down(self.up(hidden).relu())


def test_units_of_states_that_a_next_call_goes_on_from_are_left_out() -> None:
    x = torch.randn(2, 4)
    assert [group.name for group in find_groups(Recurrence(keeps=True), x).groups] == ["up"]
    assert [group.name for group in find_groups(Recurrence(keeps=False), x).groups] == ["enter", "up"]


@pytest.mark.parametrize("apart", one_in(3, [1, 2, 3, 4]))
def test_a_layer_that_fits_only_beside_one_that_loses_as_many_is_left_out(apart: int) -> None:
    assert found_in(Chain({2: written_out, 17: as_wide_as(apart)})) == all_but(2, 17 - apart)


@pytest.mark.parametrize("layer", one_in(3, [10, 11, 12]))
def test_a_layer_that_fits_only_by_the_number_that_it_loses_is_left_out(layer: int) -> None:
    assert found_in(Chain({2: written_out, layer: fours})) == all_but(2, layer)
