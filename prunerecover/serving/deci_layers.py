"""Layers of llama.cpp's architecture `deci`, packed from the branches of a decoder.

A layer of `deci` is a mixer (attention, linear map, or none), then an MLP. Cases outside llama.cpp's format have exact
equivalents:

- An attention without an MLP: llama.cpp would skip the layer. An MLP of 32 neurons with zeros stands there.
- A constant, or the bias of a linear map: the bias of the last MLP, which adds at the same point of the stream.
- A removed attention in the first layer: a head of zeros, because llama.cpp reads the head size from the first layer.
- A block without branches: no layer at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

from prunerecover.serving.decoder import Attention, Decoder, GatedMLP, LinearMap

NEURONS = 32  # neurons of an MLP with zeros: a group of Q8_0


@dataclass(frozen=True)
class Layer:
    """Layer of the file.

    Attributes:
        mixer: Attention or linear map; None: neither.
        mlp: MLP; None: zeros.
        shift: Constant added after the MLP, `(C,)`; None: zero.
    """

    mixer: Attention | LinearMap | None = None
    mlp: GatedMLP | None = None
    shift: Tensor | None = None

    @property
    def ends(self) -> bool:
        """Whether a further MLP needs another layer."""
        return self.mlp is not None or self.shift is not None


def layers_of(decoder: Decoder) -> tuple[Layer, ...]:
    """Pack the branches of a decoder into as few layers as possible, in order; the first has a mixer."""
    layers: list[Layer] = []
    for branch in (branch for branches in decoder.blocks for branch in branches):
        last = layers[-1] if layers else Layer()
        if isinstance(branch, Attention | LinearMap):
            layers.append(Layer(branch))
        elif isinstance(branch, GatedMLP):
            layers[-1:] = [Layer(last.mixer, branch)] if not last.ends else [last, Layer(mlp=branch)]
        else:
            bias = branch.bias if last.shift is None else last.shift + branch.bias
            layers[-1:] = [Layer(last.mixer, last.mlp, bias)]
    first, *others = layers or [Layer()]
    if first.mixer is None:
        first = replace(first, mixer=_no_attention(len(decoder.norm), decoder.head_size))
    return (first, *others)


def heads_of(layer: Layer) -> tuple[int, int]:
    """Return the numbers of query heads and of key and value heads in the file's entry of a layer."""
    if isinstance(layer.mixer, Attention):
        return layer.mixer.heads, layer.mixer.key_value_heads
    return int(layer.mixer is not None), 0  # keys without heads: a linear map


def neurons_of(layer: Layer) -> int:
    """Return the number of neurons in the file's entry of a layer."""
    return NEURONS if layer.mlp is None else layer.mlp.up.out_features


def tensors_of(layer: Layer, decoder: Decoder) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a layer by their names in the file.

    Args:
        layer: Layer of the file.
        decoder: Decoder of the layer.
    """
    if isinstance(layer.mixer, Attention):
        yield from _attention(layer.mixer, decoder.head_size)
    elif isinstance(layer.mixer, LinearMap):
        yield "attn_norm.weight", layer.mixer.norm
        yield "attn_output.weight", layer.mixer.weight
    yield from _mlp(layer, len(decoder.norm))


def interleaved(rows: Tensor, head_size: int) -> Tensor:
    """Reorder the rows of queries or keys: llama.cpp rotates neighbours, transformers the halves of a head.

    Args:
        rows: Weight `(heads * D, C)` or bias `(heads * D,)`.
        head_size: Size of each head, D.

    >>> interleaved(torch.arange(4), 4).tolist()
    [0, 2, 1, 3]
    """
    return torch.unflatten(rows, 0, (-1, 2, head_size // 2)).transpose(1, 2).flatten(0, 2)


def _attention(attention: Attention, head_size: int) -> Iterator[tuple[str, Tensor]]:
    yield "attn_norm.weight", attention.norm
    linears = {"attn_q": attention.query, "attn_k": attention.key}
    for name, linear in linears.items():
        yield f"{name}.weight", interleaved(linear.weight, head_size)
        if linear.bias is not None:
            yield f"{name}.bias", interleaved(linear.bias, head_size)
    for name, linear in {"attn_v": attention.value, "attn_output": attention.output}.items():
        yield f"{name}.weight", linear.weight
        if linear.bias is not None:
            yield f"{name}.bias", linear.bias


def _no_attention(width: int, head_size: int) -> Attention:
    """Return an attention with a head of zeros."""
    query, key, value = (_zeros(width, head_size) for _ in range(3))
    return Attention(torch.ones(width), query, key, value, _zeros(head_size, width), heads=1, key_value_heads=1)


def no_mlp(width: int, neurons: int) -> GatedMLP:
    """Return an MLP of zeros.

    Args:
        width: Channels of the hidden states.
        neurons: Number of neurons.
    """
    return GatedMLP(torch.ones(width), _zeros(width, neurons), _zeros(width, neurons), _zeros(neurons, width))


def _zeros(inputs: int, outputs: int) -> nn.Linear:
    linear: nn.Linear = skip_init(nn.Linear, inputs, outputs, bias=False)  # type: ignore[no-untyped-call]
    nn.init.zeros_(linear.weight)
    return linear


def _mlp(layer: Layer, width: int) -> Iterator[tuple[str, Tensor]]:
    mlp = layer.mlp or no_mlp(width, NEURONS)
    yield "ffn_norm.weight", mlp.norm
    for name, linear in {"gate": mlp.gate, "up": mlp.up, "down": mlp.down}.items():
        yield f"ffn_{name}.weight", linear.weight
        if linear.bias is not None and name != "down":
            yield f"ffn_{name}.bias", linear.bias
    if (bias := bias_behind(mlp, layer.shift)) is not None:
        yield "ffn_down.bias", bias


def bias_behind(mlp: GatedMLP, shift: Tensor | None) -> Tensor | None:
    """Return the bias of an MLP's last linear, with a shift added; None without either.

    Args:
        mlp: MLP of a layer.
        shift: Constant that the layer adds to the residual stream, or None.
    """
    biases = [bias.float() for bias in (shift, mlp.down.bias) if bias is not None]
    return torch.stack(biases).sum(0) if biases else None
