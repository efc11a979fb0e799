"""An error that finds no units names the operation that pins them, and the line that runs it."""

from __future__ import annotations

from collections.abc import Callable

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
    with pytest.raises(
        ValueError, match=f"to have groups of kind channel, but it has none.* What keeps them: {message}"
    ):
        find_groups(Between(function), IMAGES, "channel")


def test_plan_names_it_too() -> None:
    with pytest.raises(ValueError, match=r"What keeps them: 'first' by _fft_c2c"):
        plan_width(Between(Spectrum()), Budget(macs=0.3), batches=[IMAGES], loss=lambda m, b: m(b).sum())


def test_budget_that_cannot_be_met_names_what_keeps_other_units_and_a_way_out() -> None:
    net = nn.Sequential(Between(Spectrum()), nn.Conv2d(4, 6, 1), nn.ReLU(), nn.Conv2d(6, 4, 1))
    kept = r"at most \d+\.\d% can go\. What keeps other units: '0.first' by _fft_c2c \(`return torch.fft"
    with pytest.raises(Refusal, match=kept) as error:
        plan_width(net, Budget(macs=0.8), batches=[IMAGES], loss=lambda m, b: m(b).sum())
    assert "Let whole blocks, attentions or layers go, too: plan_pruning" in error.value.way_out


def test_output_of_the_model_is_the_reason_only_where_no_other_is() -> None:
    with pytest.raises(ValueError, match="What keeps them: the model itself by the model's output"):
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


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe"])
def test_neurons_of_fused_experts_are_referred_to_experts(name: str) -> None:
    model = tiny.tiny_mixture(name) if name in tiny.MIXTURES else DECODERS[name].build()
    with pytest.raises(ValueError, match='whole experts can go, but none of their neurons: pass kinds="expert"'):
        find_groups(model, tiny.tiny_inputs("text"), "neuron")


@pytest.mark.parametrize("name", ["phi", "gpt_neox", "stablelm"])
def test_heads_whose_positions_turn_a_part_of_them_can_go(name: str) -> None:
    def build() -> nn.Module:
        torch.manual_seed(0)
        return DECODERS[name].build().float().eval()

    RoundTrip(build, tiny.tiny_inputs(name), ("head",)).assert_masked_equals_narrowed()
