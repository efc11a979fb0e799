"""Rules for operations that treat units alike: element by element, norms, statistics, pooling."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from torch import Tensor

from prunerecover.graph.dimensions.dimension_ids import Maps, Operand, unify, varying
from prunerecover.graph.dimensions.operation import activations, propagate, record_output
from prunerecover.graph.dimensions.statistics import take_statistics
from prunerecover.graph.dimensions.ties import Count, Ties
from prunerecover.graph.dimensions.watching import Operation


def pointwise(ties: Ties, operation: Operation) -> None:
    """Tie ids that meet."""
    out = operation.outputs[0]
    maps = unify(ties.ids, [ties.operand(t, out.ndim) for t in operation.tensors if t.ndim])
    note_sizes(ties, operation.tensors, maps)
    propagate(ties, operation, maps, out)


def note_sizes(ties: Ties, tensors: Iterable[Tensor], maps: Maps) -> None:
    """Note, on tensors of a single value, the units behind their sizes: layers of T5 share such a tensor with heads.

    Args:
        ties: Ties of the forward pass.
        tensors: Tensors that have met.
        maps: Maps of the result.
    """
    for tensor in tensors:
        info = ties.info(tensor)
        if info.blank and not info.maps:
            met = (m for m in maps if m.ndim == tensor.ndim)
            own = tuple(m for m in met if all(tensor.shape[d] == m.shape[d] for d in varying(m)))
            ties.note(tensor, replace(info, maps=own))


def multiplied(ties: Ties, operation: Operation) -> None:
    """Tie the factors; a gate is no addend: the product is seen where its largest factor is seen."""
    out = operation.outputs[0]
    maps = unify(ties.ids, [ties.operand(t, out.ndim) for t in operation.tensors if t.ndim])
    factors = sorted(activations(ties, operation), key=lambda t: -t.numel())
    record_output(ties, operation, maps, ties.info(factors[0]).chain if factors else None, out)


def reduced(ties: Ties, operation: Operation) -> None:
    """Drop the units behind a sum; other statistics change with the number of units."""
    data, out = operation.args[0], operation.outputs[0]
    given = operation.argument(2 if "norm" in operation.name else 1, "dim")
    given = [given] if isinstance(given, int) and not isinstance(given, bool) else given
    dims = {d % data.ndim for d in given} if isinstance(given, list | tuple) and given else set(range(data.ndim))
    maps: list[Tensor] = []
    over: list[Tensor] = []
    for ids in ties.info(data).maps:
        if set(varying(ids)) <= dims:
            if operation.name != "sum":
                ties.record_norm(ids)
            over.append(ids)
        else:
            maps += ties.ids.fixed_along(ids, *dims)
    if out.ndim != data.ndim:
        maps = [m.squeeze(tuple(dims)) for m in maps]
    for tensor in operation.outputs:
        propagate(ties, operation, tuple(maps), tensor)
    take_statistics(ties, operation, over)


def along_one(ties: Ties, operation: Operation) -> None:
    """Fix the dimension of a softmax or cumulative sum: each entry depends on all others."""
    data = operation.args[0]
    dim = operation.argument(1, "dim") % data.ndim
    maps = tuple(left for m in ties.info(data).maps for left in ties.ids.fixed_along(m, dim))
    propagate(ties, operation, maps)


def gated(ties: Ties, operation: Operation) -> None:
    """Tie both halves of a dimension: `glu` multiplies the first half by a function of the second."""
    data = operation.args[0]
    dim = operation.argument(1, "dim", -1) % data.ndim
    maps = []
    for ids in ties.info(data).maps:
        value, gate = ids.chunk(2, dim) if ids.shape[dim] > 1 else (ids, ids)
        ties.ids.tie(value, gate)
        maps.append(value)
    propagate(ties, operation, tuple(maps))


def per_channel(ties: Ties, operation: Operation) -> None:
    """Fix positions in pooling and resampling: positions depend on positions, channel by channel."""
    data = operation.args[0]
    spatial = next((int(c) for c in "123" if f"{c}d" in operation.name), data.ndim - 2)
    positions = range(data.ndim - spatial, data.ndim)
    maps = tuple(left for m in ties.info(data).maps for left in ties.ids.fixed_along(m, *positions))
    for out in operation.outputs:
        propagate(ties, operation, maps, out)


def vectors(ties: Ties, tensors: Iterable[Tensor | None], ndim: int) -> list[Operand]:
    """Return operands for vectors with a weight per index of dimension 1.

    Args:
        ties: Ties of the forward pass.
        tensors: Vectors `(C,)`; None is left out.
        ndim: Dimensions of the operation.
    """
    shape = [-1 if dim == 1 else 1 for dim in range(ndim)]
    return [Operand(tuple(m.view(shape) for m in ties.info(t).maps)) for t in tensors if t is not None]


def batch_norm(ties: Ties, operation: Operation) -> None:
    """Tie channels, which are independent with running statistics; else statistics span all dimensions but dimension 1.

    The rule serves InstanceNorm, too: all channels of all samples lie along dimension 1 there.
    """
    data, *vectors_of_norm = operation.args[:5]
    own = ties.operand(data, data.ndim, only=(1,))
    if not any(isinstance(vector, Tensor) for vector in vectors_of_norm):  # no tensor shows the number of channels
        ties.counts.extend(Count(ties.path, "num_features", m.flatten()) for m in own.maps if varying(m) == (1,))
    if operation.argument(5, "training") is True:
        ties.ids.mark("normalised", *(m for m in own.maps if 1 not in varying(m)))
    propagate(ties, operation, unify(ties.ids, [own, *vectors(ties, vectors_of_norm, data.ndim)]))


def layer_norm(ties: Ties, operation: Operation) -> None:
    """Note a norm over the units themselves, or over the entries of each unit."""
    data, shape, *weights = operation.args[:4]
    dims = tuple(range(data.ndim - len(shape), data.ndim))
    maps: list[Tensor] = []
    for ids in ties.info(data).maps:
        if varying(ids) == dims:
            ties.record_norm(ids)
            maps.append(ids)
        else:
            maps += ties.ids.fixed_along(ids, *dims)
    solid = ties.operand(data, data.ndim, only=dims).solid
    own = [ties.operand(w, data.ndim, only=()) for w in weights if isinstance(w, Tensor)]
    if not own and len(dims) == 1:  # no tensor shows the number of units
        ties.counts.extend(Count(ties.path, "normalized_shape", m.flatten()) for m in maps if varying(m) == dims)
    propagate(ties, operation, unify(ties.ids, [Operand(tuple(maps), solid), *own]))


def group_norm(ties: Ties, operation: Operation) -> None:
    """Tie the channels of a group, which share statistics, to a unit; a single group is a norm over units."""
    data, weight, bias, *_, groups, _eps = operation.args
    maps = channels(ties, data)
    for ids in maps:
        if groups == 1:
            ties.record_norm(ids)
        else:
            members = ids.view(groups, -1)
            ties.ids.tie(members, members[:, :1])
            ties.counts.append(Count(ties.path, "num_groups", ids.flatten()))
    solid = ties.operand(data, data.ndim, only=(1,)).solid
    propagate(ties, operation, unify(ties.ids, [Operand(maps, solid), *vectors(ties, (weight, bias), data.ndim)]))


def channels(ties: Ties, data: Tensor) -> Maps:
    """The map along dimension 1 of a tensor; ids along further dimensions are fixed."""
    others = [d for d in range(data.ndim) if d != 1]
    return tuple(left for m in ties.info(data).maps for left in ties.ids.fixed_along(m, *others))
