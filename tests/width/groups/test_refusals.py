"""An error without units names the operation and its line; narrowable units are found in few trials."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from cases.models import tiny
from cases.models.decoders import DECODERS
from cases.width.round_trip import RoundTrip
from torch import Tensor, nn

from prunerecover import Budget, find_groups, plan_width
from prunerecover.refusal import Refusal

IMAGES = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Between(nn.Module):
    """Two convolutions, and a function between them."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.function = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 4, 1), function

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self.first(x)))


class Spectrum(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.fft2(x).real


PINNED = {
    "fft": (Spectrum(), r"'first' by _fft_c2c \(`return torch.fft.fft2\(x\).real`\)"),
    "picked": (lambda x: x + x[:, 3:4], r"'first' by slice \(`.*x \+ x\[:, 3:4\]"),
    "sorted": (lambda x: x.sort(1).values, r"'first' by sort \(`.*x.sort\(1\).values"),
    "softmax": (lambda x: x.softmax(1), r"'first' by _softmax \(`.*x.softmax\(1\)"),
    "library": (nn.Softmax(1), r"'first' by _softmax \(`return self.last\(self.function"),
    "weights": (lambda x: x * torch.arange(8.0).view(8, 1, 1), r"'first' by mul \(`.*torch.arange\(8.0\)"),
}


@pytest.mark.parametrize("name", PINNED)
def test_operation_that_pins_is_named(name: str) -> None:
    function, message = PINNED[name]
    with pytest.raises(ValueError, match=f"to have groups of kind channel, but it .* What keeps them: {message}"):
        find_groups(Between(function), IMAGES, "channel")


def test_budget_that_cannot_be_met_names_what_keeps_other_units_and_a_way_out() -> None:
    net = nn.Sequential(Between(Spectrum()), nn.Conv2d(4, 6, 1), nn.ReLU(), nn.Conv2d(6, 4, 1))
    kept = r"at most \d+\.\d% can go\. What keeps other units: '0.first' by _fft_c2c \(`return torch.fft"
    with pytest.raises(Refusal, match=kept) as error:
        plan_width(net, Budget(macs=0.8), batches=[IMAGES], loss=lambda m, b: m(b).sum())
    assert "Let whole blocks, attentions or layers go, too: plan_pruning" in error.value.way_out


def test_output_of_the_model_is_the_reason_only_where_no_other_is() -> None:
    message = "Linear to have groups of kind channel, head, neuron, but it .*: the model itself by the model's out"
    with pytest.raises(ValueError, match=message):
        find_groups(nn.Linear(3, 4), torch.zeros(2, 3))


def test_code_that_fails_with_fewer_heads_is_told() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.proj = nn.Linear(16, 48), nn.Linear(16, 16)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(x).view(2, 5, 3, 4, 4).permute(2, 0, 3, 1, 4)
            return self.proj(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 5, 16))

    message = r"What keeps them: 'qkv' by code that fails with fewer of them \(RuntimeError: shape '\[2, 5, 3, 4, 4\]'"
    with pytest.raises(ValueError, match=message):
        find_groups(Attention(), torch.randn(2, 5, 16), "head")


def test_fused_projections_cut_at_fixed_places_are_told() -> None:
    with pytest.raises(ValueError, match=r"by slice \(`query_states = qkv\[\.\.\., :query_pos"):
        find_groups(DECODERS["phi3"].build(), tiny.tiny_inputs("phi3"), "head")


def test_neurons_of_fused_experts_are_referred_to_experts() -> None:
    with pytest.raises(ValueError, match='whole experts can go, but none of their neurons: pass kinds="expert"'):
        find_groups(tiny.tiny_mixture("mixtral"), tiny.tiny_inputs("text"), "neuron")


@pytest.mark.parametrize("name", ["phi", "gpt_neox"])
def test_heads_whose_positions_turn_a_part_of_them_can_go(name: str) -> None:
    def build() -> nn.Module:
        torch.manual_seed(0)
        return DECODERS[name].build().float().eval()

    RoundTrip(build, tiny.tiny_inputs(name), ("head",)).assert_masked_equals_narrowed()


LAYERS, WIDTH = 20, 12
Habit = Callable[[Tensor, list[Tensor]], Tensor]


class Chain(nn.Module):
    """Layers with habits: code to run after a layer, given all outputs so far."""

    passes = 0  # passes of the network and all copies

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
    """Code with the width as a literal."""
    return y.view(-1, WIDTH)


def fours(y: Tensor, seen: list[Tensor]) -> Tensor:
    """Code that runs only if the width is a multiple of four."""
    return y.view(len(y), -1, 4).flatten(1)


def as_wide_as(before: int) -> Habit:
    """Code that runs only if an earlier output is at least as wide: it breaks when that layer alone is narrowed."""
    return lambda y, seen: y[:, : seen[-1 - before].shape[1]]


def found_in(net: Chain) -> list[int]:
    return [int(g.name.removeprefix("layers.")) for g in find_groups(net, torch.randn(2, WIDTH)).groups]


def all_but(*left_out: int) -> list[int]:
    return [i for i in range(LAYERS) if i not in left_out]


@pytest.mark.parametrize("fixed", [{7}, {*range(19)}], ids=len)
def test_layers_with_their_width_written_out_are_left_out_and_no_others(fixed: set[int]) -> None:
    assert found_in(Chain(dict.fromkeys(fixed, written_out))) == all_but(*fixed)


def test_one_layer_among_many_is_found_in_few_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Chain, "passes", 0)
    find_groups(Chain({7: written_out}), torch.randn(2, WIDTH))
    assert Chain.passes < 2 * LAYERS  # one by one: twice per layer, in evaluation and in training mode, and a few


class Recurrence(nn.Module):
    """Recurrence from a state of a fixed size, kept for the next call."""

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


@pytest.mark.parametrize("apart", [1, 4])
def test_a_layer_that_fits_only_beside_one_that_loses_as_many_is_left_out(apart: int) -> None:
    assert found_in(Chain({2: written_out, 17: as_wide_as(apart)})) == all_but(2, 17 - apart)


def test_a_layer_that_fits_only_by_the_number_that_it_loses_is_left_out() -> None:
    assert found_in(Chain({2: written_out, 10: fours})) == all_but(2, 10)
