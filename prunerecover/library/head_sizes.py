"""Weights of smaller heads in closed form, with logits and values nearest to the dense heads'.

Attention uses queries and keys of a head through their products alone, so linear maps A and B can reduce both: the
logits q' A' B k are nearest to q' k, over all pairs of tokens, where Rq A' B Rk is the truncated singular value
decomposition of Rq Rk, with Rq and Rk the roots of the second moments of queries and of centred keys (a shift common to
all keys changes all logits of a query equally, and the softmax ignores the shift). Values go through R, the part most
read by the output projection: the first left singular vectors of Wo Rx, with Rx the root of the moments of the head's
output. As the softmax sums to one, the smaller head gives R x, so moments of the projection's inputs follow, and the
projection can be refitted without a further pass.

Queries and keys of a smaller rank in the metric of inputs are MoDeGPT's (arXiv 2408.09632) and CORP's (2602.05243); we
give queries, keys and values one size, centre the keys, and choose values by the projection behind. Not covered:
attention to inputs of a second stream, and heads with operations beyond products and sums; see `width.heads`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from prunerecover.model.paths import get_module, parent_path
from prunerecover.plan.groups import Group, Slice
from prunerecover.width.heads.layout import HeadLayout, entries_of, mapped, with_entries

RIDGE = 1e-6  # of the mean second moment: directions absent from the samples count for a little
TINY = 1e-12  # of the largest singular value


@dataclass(frozen=True)
class SmallerHeads:
    """Weights of an attention with smaller, and perhaps fewer, heads.

    Attributes:
        values: Values of the parameters by path, at their new shapes, on the CPU.
        reduction: Map `(new + 1, old + 1)` from the old inputs of the output projection, with a one appended, to the
            new.
    """

    values: dict[str, Tensor]
    reduction: Tensor


def smaller_heads(
    group: Group, network: nn.Module, size: int, heads: Sequence[int], input_moment: Tensor, output_moment: Tensor
) -> SmallerHeads:
    """Return the best weights of an attention for smaller heads.

    The weights fit a network without the removed heads, and with only the first dimensions of each head. The softmax
    scale of the module follows the head size (`Group.scaled_by`); the weights of queries compensate for the change.

    Args:
        group: Group of kind "head_dim".
        network: Network, unwrapped, with all heads at their full size; unchanged.
        size: Number of dimensions kept by each head.
        heads: Numbers of the heads that stay, ascending.
        input_moment: Second moment of the attention's inputs with a one appended, `(D + 1, D + 1)`; any multiple.
        output_moment: Second moment of the output projection's inputs with a one appended; any multiple.

    Raises:
        ValueError: If the group is of another kind, heads or dimensions are out of range, or a moment has a wrong
            shape.
    """
    layout = HeadLayout.of(group)
    _check_kept(layout, size, heads)
    with torch.no_grad():
        query, key, value = (_with_bias(network, *made, layout.size, heads) for made in layout.made())
        weight = _tensor(network, layout.output)
        seen = _moment(input_moment, query.shape[-1], "the attention reads")
        given = _moment(output_moment, weight.shape[layout.output.dim] + 1, "the output projection reads")
        maps = [
            *_maps_of_logits(query @ seen @ query.mT, key @ _centred(seen) @ key.mT, size),
            _map_of_values(network, layout, heads, size, given),
        ]
        maps[0] = maps[0] * (layout.size / size) ** group.scaled_by
        maps[2] = _of_dense_norm(maps[2], value)
        values = _values(network, layout, heads, maps)
        identity = torch.eye(len(given), dtype=torch.float64)
        read = layout.output.model_copy(update={"dim": 0})
        reduction = _narrowed(identity, [(read, maps[2])], layout.size, heads)
    return SmallerHeads(values, reduction)


def _check_kept(layout: HeadLayout, size: int, heads: Sequence[int]) -> None:
    ascending = list(heads) == sorted(set(heads))
    if not heads or not ascending or heads[0] < 0 or heads[-1] >= layout.heads or not 1 <= size <= layout.size:
        raise ValueError(
            f"Expected 1 to {layout.size} dimensions of heads that stay, as ascending numbers from 0 to "
            f"{layout.heads - 1}, but got {size} of {list(heads)}."
        )


def _moment(moment: Tensor, size: int, what: str) -> Tensor:
    """Return a second moment as a mean, with a small share of every direction."""
    if moment.shape != (size, size):
        raise ValueError(
            f"Expected the second moment of what {what}, with a one behind it, of shape {(size, size)}, but got "
            f"{tuple(moment.shape)}."
        )
    mean = moment.detach().cpu().double() / moment[-1, -1].cpu().double()
    mean.diagonal()[:-1] += RIDGE * mean.diagonal()[:-1].mean()
    return mean


def _centred(moment: Tensor) -> Tensor:
    return moment - torch.outer(moment[:, -1], moment[-1])


def _tensor(network: nn.Module, part: Slice) -> Tensor:
    return network.get_parameter(part.tensor).detach().cpu().double()


def _with_bias(network: nn.Module, weight: Slice, bias: Slice | None, size: int, heads: Sequence[int]) -> Tensor:
    """Return weights of heads with their biases appended, `(heads, size, D + 1)`."""
    rows = entries_of(_tensor(network, weight), weight, size, heads)
    last = rows.new_zeros(rows.shape[:2]) if bias is None else entries_of(_tensor(network, bias), bias, size, heads)
    return torch.cat([rows, last[..., None]], -1)


def _root(moment: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(moment)
    root: Tensor = (vectors * values.clamp_min(0).sqrt()[..., None, :]) @ vectors.mT
    return root


def _maps_of_logits(query: Tensor, key: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return maps of queries and keys, `(heads, size, old)` each, given their second moments `(heads, old, old)`."""
    query, key = _root(query), _root(key)
    left, values, right = torch.linalg.svd(query @ key)
    left, values, right = left[..., :size], values[..., :size], right.mT[..., :size]
    shown = values > TINY * values[..., :1]
    scale = torch.where(shown, values, 1).rsqrt() * shown
    return (scale[..., None] * right.mT) @ key, (scale[..., None] * left.mT) @ query


def _map_of_values(network: nn.Module, layout: HeadLayout, heads: Sequence[int], size: int, given: Tensor) -> Tensor:
    """Return the map of values, `(heads, size, old)`; a bias behind the projection compensates for means."""
    part = layout.output
    if getattr(get_module(network, parent_path(part.tensor)), "bias", None) is not None:
        given = _centred(given)
    reads = entries_of(_tensor(network, part), part, layout.size, heads)
    ones = entries_of(torch.eye(len(given)).double(), part.model_copy(update={"dim": 0}), layout.size, heads)
    root, read = _root(ones @ given @ ones.mT), reads @ reads.mT
    vectors: Tensor = torch.linalg.eigh(root @ read @ root)[1].flip(-1)[..., :size]
    return vectors.mT @ root @ read


def _of_dense_norm(maps: Tensor, rows: Tensor) -> Tensor:
    """Return maps of values scaled for rows of the dense norm, which decides the size of later training steps.

    Args:
        maps: Maps `(heads, new, old)`.
        rows: Dense weights and biases, `(heads, old, D + 1)`.
    """
    norms = (maps @ rows[..., :-1]).norm(dim=-1, keepdim=True)
    wanted = rows[..., :-1].square().sum(-1).mean(-1).sqrt()[:, None, None]
    return maps * torch.where(norms > TINY * wanted, wanted / norms, 1)


def _values(network: nn.Module, layout: HeadLayout, heads: Sequence[int], maps: Sequence[Tensor]) -> dict[str, Tensor]:
    changes: dict[str, list[tuple[Slice, Tensor]]] = defaultdict(list)
    for (weight, bias), own in zip(layout.made(), maps, strict=True):
        for part in filter(None, (weight, bias)):
            changes[part.tensor].append((part, own))
    return {
        path: _narrowed(_tensor(network, parts[0][0]), parts, layout.size, heads).to(_kept_dtype(network, path))
        for path, parts in changes.items()
    }


def _kept_dtype(network: nn.Module, path: str) -> torch.dtype:
    return torch.promote_types(network.get_parameter(path).dtype, torch.float32)


def _narrowed(tensor: Tensor, changes: Sequence[tuple[Slice, Tensor]], size: int, heads: Sequence[int]) -> Tensor:
    """Return a tensor with mapped heads, and without the removed entries.

    Args:
        tensor: Tensor with all heads.
        changes: Entries of heads in the tensor, and maps of the heads that stay, `(heads, new, size)`.
        size: Number of dimensions of a head before.
        heads: Numbers of the heads that stay.
    """
    dim = changes[0][0].dim
    stays = torch.ones(tensor.shape[dim], dtype=torch.bool)
    for part, maps in changes:
        tensor = with_entries(tensor, part, mapped(entries_of(tensor, part, size, heads), maps), heads)
        for head, offset in enumerate(part.offsets):
            stays[offset + (maps.shape[1] if head in heads else 0) : offset + size] = False
    return tensor.index_select(dim, stays.nonzero().flatten())
