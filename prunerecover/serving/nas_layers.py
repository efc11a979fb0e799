"""Layers of the Nemotron-NAS format, padded from the branches of a decoder; every padding computes zero.

- Fewer query heads: heads of zeros, in the groups that share keys.
- A width of an MLP: neurons of zeros up to a multiple of 256.
- A linear map: an MLP whose gate is the constant 16 and whose last matrix divides by 16; silu(16) is 16 to 1e-7.
- A constant: the bias of the last MLP, or of an MLP of 256 zeros.
- A missing attention in the first layer: an attention of zeros. vLLM cannot begin without.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from prunerecover.serving.deci_layers import Layer, bias_behind, layers_of, no_mlp
from prunerecover.serving.decoder import Attention, Branch, Decoder, GatedMLP, LinearMap

MULTIPLE = 256  # divisor of the widths of MLPs
GATE = 16.0


class Shape(NamedTuple):
    """Sizes of all layers: number of query heads, size of a head, hidden size."""

    heads: int
    head_size: int
    width: int


def nas_layers(decoder: Decoder) -> list[Layer]:
    """Pack the branches of a decoder into layers without linear maps; the first has an attention."""
    blocks = tuple(tuple(map(_without_map, branches)) for branches in decoder.blocks)
    return list(layers_of(replace(decoder, blocks=blocks)))


def _without_map(branch: Branch) -> Branch:
    """Return the MLP equivalent to a linear map; other branches unchanged."""
    if not isinstance(branch, LinearMap):
        return branch
    width = len(branch.norm)
    gate, up, down = nn.Linear(width, width), nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
    with torch.no_grad():
        gate.weight.zero_()
        gate.bias.fill_(GATE)
        up.weight.copy_(branch.weight)
        down.weight.copy_(torch.eye(width) / GATE)
    return GatedMLP(branch.norm, gate, up, down)


def config_of(layer: Layer, shape: Shape) -> dict[str, Any]:
    """Return the entry of a layer in the config.

    Args:
        layer: Layer of the folder.
        shape: Sizes of all layers.
    """
    attention, neurons = layer.mixer if isinstance(layer.mixer, Attention) else None, _neurons(layer)
    return {
        "attention": {
            "no_op": attention is None,
            "replace_with_linear": False,
            "n_heads_in_group": None if attention is None else shape.heads // key_value_heads(attention, shape.heads),
        },
        "ffn": {
            "no_op": not neurons,
            "replace_with_linear": False,
            # Servers compute int(2 / 3 * ffn_mult * width), rounded up to a multiple: the middle is safe.
            "ffn_mult": 1.5 * (neurons - MULTIPLE / 2) / shape.width if neurons else None,
        },
    }


def tensors_of(layer: Layer, shape: Shape) -> dict[str, Tensor]:
    """Return the tensors of a layer by their names in transformers, without biases of zeros.

    Args:
        layer: Layer of the folder.
        shape: Sizes of all layers.
    """
    found = _attention(layer.mixer, shape) if isinstance(layer.mixer, Attention) else {}
    return found | (_mlp(layer, shape.width) if _neurons(layer) else {})


def fill_biases(tensors: dict[str, Tensor], part: str) -> bool:
    """Add biases of zeros to the linears of a part in all layers, if any of them has a bias.

    Args:
        tensors: Tensors of all layers by name, changed in place.
        part: Name of the part, "self_attn" or "mlp".

    Returns:
        Whether the linears of the part have biases.
    """
    linears = {name.rpartition(".")[0]: tensor for name, tensor in tensors.items() if f".{part}." in name}
    biased = any(f"{name}.bias" in tensors for name in linears)
    if biased:
        zeros = {f"{name}.bias": torch.zeros(len(tensor)) for name, tensor in linears.items()}
        tensors |= {name: zero for name, zero in zeros.items() if name not in tensors}
    return biased


def _neurons(layer: Layer) -> int:
    """Return the padded width of the MLP; 0 for a layer without one."""
    if layer.mlp is None:
        return 0 if layer.shift is None else MULTIPLE
    return -(-layer.mlp.up.out_features // MULTIPLE) * MULTIPLE


def key_value_heads(attention: Attention, heads: int) -> int:
    """Return the smallest number of key and value heads whose groups have room for the attention's; 0 for none.

    Args:
        attention: Attention of a layer.
        heads: Number of query heads of all layers.
    """
    group = attention.heads // attention.key_value_heads
    counts = (count for count in range(attention.key_value_heads, heads + 1) if heads % count == 0)
    return next((count for count in counts if heads // count >= group), 0)


def _attention(attention: Attention, shape: Shape) -> dict[str, Tensor]:
    shared = key_value_heads(attention, shape.heads)
    group = attention.heads // attention.key_value_heads
    groups = {"q_proj": (group, shape.heads // shared), "k_proj": (1, 1), "v_proj": (1, 1)}
    found = {"input_layernorm.weight": attention.norm}
    for name, linear in {"q_proj": attention.query, "k_proj": attention.key, "v_proj": attention.value}.items():
        had, wanted = groups[name]
        for kind in ("weight", "bias"):
            if (rows := getattr(linear, kind)) is not None:
                found[f"self_attn.{name}.{kind}"] = _padded(rows, had, (shared, wanted), shape.head_size)
    columns = _padded(attention.output.weight.T, group, (shared, shape.heads // shared), shape.head_size)
    found["self_attn.o_proj.weight"] = columns.T
    if attention.output.bias is not None:
        found["self_attn.o_proj.bias"] = attention.output.bias
    return found


def _padded(rows: Tensor, group: int, wanted: tuple[int, int], head_size: int) -> Tensor:
    """Pad the rows of heads with zeros, from groups of a size to a number of groups of another size.

    >>> _padded(torch.ones(2), 1, (2, 2), 1).tolist()
    [1.0, 0.0, 1.0, 0.0]
    """
    heads = torch.unflatten(rows.detach(), 0, (-1, group, head_size))
    room = heads.new_zeros(*wanted, *heads.shape[2:])
    room[: len(heads), :group] = heads
    return room.flatten(0, 2)


def _mlp(layer: Layer, width: int) -> dict[str, Tensor]:
    neurons = _neurons(layer)
    mlp = layer.mlp or no_mlp(width, neurons)
    more = neurons - mlp.up.out_features
    found = {"post_attention_layernorm.weight": mlp.norm, "mlp.down_proj.weight": F.pad(mlp.down.weight, (0, more))}
    for name, linear in {"gate_proj": mlp.gate, "up_proj": mlp.up}.items():
        found[f"mlp.{name}.weight"] = F.pad(linear.weight, (0, 0, 0, more))
        if linear.bias is not None:
            found[f"mlp.{name}.bias"] = F.pad(linear.bias, (0, more))
    bias = bias_behind(mlp, layer.shift)
    return found if bias is None else {**found, "mlp.down_proj.bias": bias}
