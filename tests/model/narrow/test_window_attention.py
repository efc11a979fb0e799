"""Window attentions with removable heads compute the same as torchvision's own."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from cases.sampling import covering
from torch import nn
from torchvision.models.swin_transformer import ShiftedWindowAttention, ShiftedWindowAttentionV2

from prunerecover.model.narrow.freeing import attentions_in, with_free_heads
from prunerecover.model.narrow.window_attention import NarrowWindowAttention, NarrowWindowAttentionV2

KINDS = {ShiftedWindowAttention: NarrowWindowAttention, ShiftedWindowAttentionV2: NarrowWindowAttentionV2}
SIZES = [(8, 8), (7, 10), (4, 9), (3, 4)]  # whole windows, padded ones, and images of one window on an axis


def attention(kind: type[nn.Module], shift: list[int], bias: bool = True) -> Any:
    torch.manual_seed(0)
    made = kind(12, [4, 4], shift, 3, qkv_bias=bias, proj_bias=bias).eval()
    for parameter in made.parameters():
        parameter.data.normal_(std=0.5)
    return made


@pytest.mark.parametrize(
    ("kind", "size", "shift", "bias"), covering([*KINDS], SIZES, ([0, 0], [2, 2], [1, 0], [3, 2]), (True, False))
)
def test_they_answer_as_torchvisions_own(
    kind: type[nn.Module], size: tuple[int, int], shift: list[int], bias: bool
) -> None:
    model = nn.Sequential(attention(kind, shift, bias))
    x = torch.randn(2, *size, 12)
    with torch.no_grad():
        expected = model(x)
        with with_free_heads(model, attentions_in(model)):
            assert type(model[0]) is KINDS[kind]
            found = model(x)
    assert type(model[0]) is kind
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_and_dropout_are_torchvisions_own(kind: type[nn.Module]) -> None:
    dense = attention(kind, [2, 2]).train()
    dense.attention_dropout = dense.dropout = 0.5
    free = copy.deepcopy(dense)
    free.__class__ = KINDS[kind]
    x = torch.randn(2, 7, 10, 12)
    for module in (dense, free):
        torch.manual_seed(1)
        module(x).square().sum().backward()
    for (name, own), other in zip(dense.named_parameters(), free.parameters(), strict=True):
        torch.testing.assert_close(other.grad, own.grad, atol=1e-3, rtol=1e-4, msg=name)
