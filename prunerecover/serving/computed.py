"""Logits of a decoder's description, computed in float32 without the network's code.

A server sees the description alone. A network with further arithmetic (a subclass, a hook, a scale) computes other
outputs, and is refused before a file is written.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from prunerecover.model.evaluation import evaluating
from prunerecover.refusal import Refusal
from prunerecover.serving.decoder import OTHERWISE, Attention, Branch, Decoder, GatedMLP, LinearMap

SEQUENCES, LENGTH = 2, 16
TOLERANCES = {torch.float32: 1e-3, torch.float64: 1e-3}
HALF = 0.1  # rounding of half precision in a deep network


def check_computes(decoder: Decoder, network: nn.Module) -> None:
    """Compare the logits of a description with the network's on a few random tokens.

    Args:
        decoder: Description of the network.
        network: Network on any device; evaluated, and left unchanged.

    Raises:
        Refusal: If the logits differ by more than 0.001 of the largest one; 0.1 in half precision.
    """
    draw = torch.Generator().manual_seed(0)
    size = (SEQUENCES, min(LENGTH, decoder.context))
    tokens = torch.randint(len(decoder.embeddings), size, generator=draw).to(decoder.embeddings.device)
    with evaluating(network), torch.no_grad():
        wanted = network(input_ids=tokens, attention_mask=torch.ones_like(tokens)).logits.float()
        found = logits(decoder, tokens)
    error = float((found - wanted).abs().max() / wanted.abs().max().clamp_min(torch.finfo(torch.float32).tiny))
    if not error <= TOLERANCES.get(decoder.embeddings.dtype, HALF):
        raise Refusal(
            f"a network equal to its parts, as {decoder.name} is",
            f"its logits differ from those of the parts by {error:.3g} of the largest",
            "Was forward changed, or a hook added? A file holds the parts alone. " + OTHERWISE,
        )


def logits(decoder: Decoder, tokens: Tensor) -> Tensor:
    """Return the logits of tokens `(N, T)`, `(N, T, vocabulary)`, in float32."""
    hidden = F.embedding(tokens, decoder.embeddings.float())
    for branches in decoder.blocks:
        for branch in branches:
            hidden = hidden + _added(decoder, branch, hidden)
    head = decoder.embeddings if decoder.head is None else decoder.head
    return F.linear(_normed(decoder, hidden, decoder.norm), head.float())


def _added(decoder: Decoder, branch: Branch, hidden: Tensor) -> Tensor:
    """Return a branch's addition to the residual stream, `(N, T, C)` or `(C,)`."""
    match branch:
        case Attention():
            return _attended(decoder, branch, _normed(decoder, hidden, branch.norm))
        case GatedMLP():
            normed = _normed(decoder, hidden, branch.norm)
            return _mapped(F.silu(_mapped(normed, branch.gate)) * _mapped(normed, branch.up), branch.down)
        case LinearMap():
            return F.linear(_normed(decoder, hidden, branch.norm), branch.weight.to(hidden))
    return branch.bias.float()


def _normed(decoder: Decoder, hidden: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(hidden, (len(weight),), weight.float(), decoder.epsilon)


def _mapped(x: Tensor, linear: nn.Linear) -> Tensor:
    return F.linear(x, linear.weight.float(), None if linear.bias is None else linear.bias.float())


def _attended(decoder: Decoder, attention: Attention, normed: Tensor) -> Tensor:
    query, key, value = (
        torch.unflatten(_mapped(normed, linear), -1, (-1, decoder.head_size)).transpose(1, 2)
        for linear in (attention.query, attention.key, attention.value)
    )
    query, key = _rotated(query, decoder.frequencies), _rotated(key, decoder.frequencies)
    mixed = F.scaled_dot_product_attention(
        query, key, value, is_causal=True, enable_gqa=attention.heads != attention.key_value_heads
    )
    return _mapped(mixed.transpose(1, 2).flatten(2), attention.output)


def _rotated(heads: Tensor, frequencies: Tensor) -> Tensor:
    """Rotate the pairs (i, i + D / 2) of heads `(N, heads, T, D)` by their positions."""
    angles = torch.outer(torch.arange(heads.shape[2], device=heads.device).float(), frequencies.float())
    first, second = heads.chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
