"""`NarrowAttention` computes the same as PyTorch's own attention, for every form of call."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import torch
from cases.sampling import covering
from torch import Tensor, nn

from prunerecover import NarrowAttention
from prunerecover.model.narrow.freeing import with_free_heads

CALLS = covering((True, False), (True, False), (None, "true", "added", "per head", "causal"), (None, "true", "added"))


def attentions() -> Iterator[nn.MultiheadAttention]:
    """PyTorch's own, of all forms."""
    for bias, extras, width, first in product([True, False], [True, False], [None, 6], [True, False]):
        torch.manual_seed(0)
        sizes = {"kdim": width, "vdim": width, "add_bias_kv": extras, "add_zero_attn": extras, "batch_first": first}
        attention = nn.MultiheadAttention(8, 2, bias=bias, **sizes).eval()
        for parameter in attention.parameters():
            parameter.data.normal_()
        yield attention


def given(attention: nn.MultiheadAttention, batched: bool, mask: str | None, padding: str | None) -> tuple[Any, Any]:
    """Arguments for a call."""
    own = attention.kdim == 8
    query, others = torch.randn(2, 5, 8), torch.randn(2, 5, attention.kdim)
    masks = {
        "true": torch.ones(5, 5).triu(2).bool(),
        "added": torch.randn(5, 5),
        "per head": torch.randn(4 if batched else 2, 5, 5),
        "causal": torch.ones(5, 5).triu(1).bool(),
    }
    paddings: dict[str, Tensor] = {"true": torch.arange(5) >= torch.tensor([[3], [5]]), "added": torch.randn(2, 5)}
    padded = paddings[padding] if padding else None
    if not batched:
        query, others, padded = query[0], others[0], padded if padded is None else padded[0]
    elif not attention.batch_first:
        query, others = query.transpose(0, 1), others.transpose(0, 1)
    arguments = {"attn_mask": masks[mask] if mask else None, "key_padding_mask": padded, "is_causal": mask == "causal"}
    return (query, query, query) if own else (query, others, others), arguments


@pytest.mark.parametrize(("batched", "weights", "mask", "padding"), CALLS)
@pytest.mark.filterwarnings("ignore:Support for mismatched")
def test_it_answers_every_call_as_pytorchs_own(batched: bool, weights: bool, mask: Any, padding: Any) -> None:
    torch.backends.mha.set_fastpath_enabled(False)
    for attention in attentions():
        inputs, arguments = given(attention, batched, mask, padding)
        with torch.no_grad():
            expected = attention(*inputs, need_weights=weights, average_attn_weights=batched, **arguments)
            with with_free_heads(nn.Sequential(attention), ["0"]):
                assert type(attention) is NarrowAttention
                found = attention(*inputs, need_weights=weights, average_attn_weights=batched, **arguments)
        assert type(attention) is nn.MultiheadAttention
        torch.testing.assert_close(found[0], expected[0], atol=1e-4, rtol=1e-4)
        assert (found[1] is None) == (expected[1] is None)
        if weights:
            torch.testing.assert_close(found[1], expected[1], atol=1e-4, rtol=1e-4)
    torch.backends.mha.set_fastpath_enabled(True)


def test_weights_drop_out_in_training() -> None:
    torch.manual_seed(0)
    attention, x = NarrowAttention(8, 2, 4, dropout=0.5), torch.randn(5, 2, 8)
    first, second = (attention(x, x, x)[0] for _ in range(2))
    assert not torch.equal(first, second)
    assert (attention(x, x, x, average_attn_weights=False)[1] == 0).any()


def test_a_causal_hint_without_a_mask_and_no_head_are_refused() -> None:
    x = torch.randn(5, 2, 8)
    with pytest.raises(RuntimeError, match="Expected attn_mask along with is_causal, but got none"):
        NarrowAttention(8, 2, 4)(x, x, x, is_causal=True)
    with pytest.raises(ValueError, match="of at least 1, but got embed_dim=8, num_heads=0, head_dim=4"):
        NarrowAttention(8, 0, 4)
