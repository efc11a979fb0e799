"""Generation continues from the prompts' states after the router's blocks, and recomputes them where necessary."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cases.models.routed_language import GREEDY, PROMPTS, sets_of
from cases.models.tiny import tiny_llama
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from prunerecover.routing.routed_causal_lm import RoutedCausalLM
from prunerecover.routing.router import PrefixRouter


class Alternating(PrefixRouter):
    """Picks sets in turn."""

    def forward(self, features: Tensor) -> Tensor:
        return torch.eye(self.n_sets)[torch.arange(len(features)) % 2]


@pytest.fixture
def routed() -> RoutedCausalLM:
    torch.manual_seed(0)
    dense = tiny_llama(num_hidden_layers=6)
    return RoutedCausalLM(dense, sets_of(dense), Alternating(32, 4)).eval()


@pytest.fixture
def prefills(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the numbers of the blocks run on more than one token."""
    seen, forward = list[int](), LlamaDecoderLayer.forward

    def noting(self: nn.Module, hidden: Tensor, *args: Any, **kwargs: Any) -> Any:
        if hidden.shape[1] > 1:
            seen.append(self.self_attn.layer_idx)  # type: ignore[union-attr]
        return forward(self, hidden, *args, **kwargs)

    monkeypatch.setattr(LlamaDecoderLayer, "forward", noting)
    return seen


def test_first_blocks_run_once(routed: RoutedCausalLM, prefills: list[int]) -> None:
    routed.generate(PROMPTS[:1], **GREEDY)
    assert prefills == [0, 1, 2, 3]  # the first set has four blocks


@pytest.mark.parametrize("how", [{}, {"num_beams": 2}, {"attention_mask": torch.ones(3, 5).long()}])
def test_answers_are_those_of_the_sets(routed: RoutedCausalLM, how: dict[str, Any]) -> None:
    found = routed.generate(PROMPTS, **GREEDY, **how)
    again = routed.generate(PROMPTS, routes=[0, 1, 0], **GREEDY, **how)
    assert torch.equal(found, again)


def test_padded_prompts_are_computed_anew(routed: RoutedCausalLM, prefills: list[int]) -> None:
    mask = torch.tensor([[0, 1, 1, 1, 1], [1, 1, 1, 1, 1], [1, 1, 1, 1, 1]])
    found = routed.generate(PROMPTS, mask, **GREEDY)
    assert prefills.count(0) == 4  # prompts of two lengths for the router, and two sets
    assert torch.equal(found, routed.generate(PROMPTS, mask, routes=[0, 1, 0], **GREEDY))


def test_nothing_stays_on_the_blocks(routed: RoutedCausalLM) -> None:
    routed.generate(PROMPTS, **GREEDY)
    for number in (-1, 0, 1):
        assert not any("forward" in vars(m) or m._forward_hooks for m in routed.network(number).modules())
