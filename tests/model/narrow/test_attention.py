"""`NarrowAttention` computes the same as PyTorch's own attention, for every form of call."""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import torch
from cases.sampling import covering
from torch import Tensor, nn

from prunerecover import NarrowAttention
from prunerecover.model.narrow.freeing import attentions_in, with_free_heads

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
                found = attention(*inputs, need_weights=weights, average_attn_weights=batched, **arguments)
        torch.testing.assert_close(found[0], expected[0], atol=1e-4, rtol=1e-4)
        assert (found[1] is None) == (expected[1] is None)
        if weights:
            torch.testing.assert_close(found[1], expected[1], atol=1e-4, rtol=1e-4)
    torch.backends.mha.set_fastpath_enabled(True)


def test_without_batches_of_heads_it_is_as_it_was() -> None:
    model = nn.Sequential(nn.MultiheadAttention(8, 2))
    with with_free_heads(model, attentions_in(model)):
        assert type(model[0]) is NarrowAttention
    assert type(model[0]) is nn.MultiheadAttention


def test_fewer_heads_are_the_sum_of_theirs() -> None:
    """Built by hand: the output is the sum of the kept heads' outputs in a larger attention."""
    torch.manual_seed(0)
    dense = nn.MultiheadAttention(12, 3, batch_first=True).eval()
    narrow = NarrowAttention(12, 2, 4, batch_first=True).eval()
    rows = torch.tensor([0, 1, 2, 3, 8, 9, 10, 11])
    with torch.no_grad():
        dense.out_proj.weight[:, 4:8] = 0
        fused = torch.cat([rows, rows + 12, rows + 24])
        narrow.in_proj_weight.copy_(dense.in_proj_weight[fused])
        narrow.in_proj_bias.copy_(dense.in_proj_bias[fused])
        narrow.out_proj.weight.copy_(dense.out_proj.weight[:, rows])
        narrow.out_proj.bias.copy_(dense.out_proj.bias)
        x = torch.randn(2, 5, 12)
        torch.testing.assert_close(narrow(x, x, x)[0], dense(x, x, x)[0], atol=1e-5, rtol=1e-5)


def test_it_is_copied_and_loaded_as_weights_alone() -> None:
    attention, x = NarrowAttention(8, 3, 4), torch.randn(5, 2, 8)
    again = copy.deepcopy(attention)
    assert torch.equal(again(x, x, x)[0], attention(x, x, x)[0])
    file, other = io.BytesIO(), NarrowAttention(8, 3, 4)
    torch.save(attention.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(other(x, x, x)[0], attention(x, x, x)[0])


def test_weights_drop_out_in_training() -> None:
    torch.manual_seed(0)
    attention, x = NarrowAttention(8, 2, 4, dropout=0.5), torch.randn(5, 2, 8)
    first, second = (attention(x, x, x)[0] for _ in range(2))
    assert not torch.equal(first, second)
    assert (attention(x, x, x, average_attn_weights=False)[1] == 0).any()


def test_causal_hint_without_a_mask_is_refused() -> None:
    x = torch.randn(5, 2, 8)
    with pytest.raises(RuntimeError, match="Expected attn_mask along with is_causal, but got none"):
        NarrowAttention(8, 2, 4)(x, x, x, is_causal=True)


def test_no_head_is_refused() -> None:
    with pytest.raises(ValueError, match="of at least 1, but got embed_dim=8, num_heads=0, head_dim=4"):
        NarrowAttention(8, 0, 4)
