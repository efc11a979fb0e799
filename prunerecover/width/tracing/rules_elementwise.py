"""Rules for operations that treat units alike: element by element, norms, statistics, pooling."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from prunerecover.width.tracing.dimension_ids import Maps, Operand, unify, varying
from prunerecover.width.tracing.operation import Operation, activations, conclude, go_on
from prunerecover.width.tracing.trace import Count, Trace


def pointwise(trace: Trace, operation: Operation) -> None:
    """What meets is tied."""
    out = operation.outputs[0]
    maps = unify(trace.labels, [trace.operand(t, out.ndim) for t in operation.tensors if t.ndim])
    go_on(trace, operation, maps, out)


def multiplied(trace: Trace, operation: Operation) -> None:
    """A gate is no addend: the product is seen where its largest factor is seen."""
    out = operation.outputs[0]
    maps = unify(trace.labels, [trace.operand(t, out.ndim) for t in operation.tensors if t.ndim])
    factors = sorted(activations(trace, operation), key=lambda t: -t.numel())
    conclude(trace, operation, maps, trace.info(factors[0]).chain if factors else None, out)


def reduced(trace: Trace, operation: Operation) -> None:
    """A sum over units has nothing left of them; other statistics change when one goes."""
    data, out = operation.args[0], operation.outputs[0]
    given = operation.argument(2 if "norm" in operation.name else 1, "dim")
    given = [given] if isinstance(given, int) and not isinstance(given, bool) else given
    dims = {d % data.ndim for d in given} if isinstance(given, list | tuple) and given else set(range(data.ndim))
    maps: list[Tensor] = []
    for labels in trace.info(data).maps:
        if set(varying(labels)) <= dims:
            if operation.name != "sum":
                trace.labels.mark("normalised", labels)
        else:
            maps += trace.labels.fixed_along(labels, *dims)
    if out.ndim != data.ndim:
        maps = [m.squeeze(tuple(dims)) for m in maps]
    for tensor in operation.outputs:
        go_on(trace, operation, tuple(maps), tensor)


def along_one(trace: Trace, operation: Operation) -> None:
    """Softmax and the like: each entry along the dimension depends on all others."""
    data = operation.args[0]
    dim = operation.argument(1, "dim") % data.ndim
    maps = tuple(left for m in trace.info(data).maps for left in trace.labels.fixed_along(m, dim))
    go_on(trace, operation, maps)


def gated(trace: Trace, operation: Operation) -> None:
    """`glu` multiplies the first half of a dimension by a function of the second."""
    data = operation.args[0]
    dim = operation.argument(1, "dim", -1) % data.ndim
    maps = []
    for labels in trace.info(data).maps:
        value, gate = labels.chunk(2, dim) if labels.shape[dim] > 1 else (labels, labels)
        trace.labels.tie(value, gate)
        maps.append(value)
    go_on(trace, operation, tuple(maps))


def per_channel(trace: Trace, operation: Operation) -> None:
    """Pooling and resampling: positions are computed from positions, channel by channel."""
    data = operation.args[0]
    spatial = next((int(c) for c in "123" if f"{c}d" in operation.name), data.ndim - 2)
    positions = range(data.ndim - spatial, data.ndim)
    maps = tuple(left for m in trace.info(data).maps for left in trace.labels.fixed_along(m, *positions))
    for out in operation.outputs:
        go_on(trace, operation, maps, out)


def vectors(trace: Trace, tensors: Iterable[Tensor | None], ndim: int) -> list[Operand]:
    """Describe vectors of one weight per index of dimension 1."""
    shape = [-1 if dim == 1 else 1 for dim in range(ndim)]
    return [Operand(tuple(m.view(shape) for m in trace.info(t).maps)) for t in tensors if t is not None]


def batch_norm(trace: Trace, operation: Operation) -> None:
    """With running statistics each element is on its own; else they are over all dimensions but dimension 1."""
    data = operation.args[0]
    own = trace.operand(data, data.ndim, only=(1,))
    if operation.argument(5, "training") is True:
        trace.labels.mark("normalised", *(m for m in own.maps if 1 not in varying(m)))
    go_on(trace, operation, unify(trace.labels, [own, *vectors(trace, operation.args[1:5], data.ndim)]))


def layer_norm(trace: Trace, operation: Operation) -> None:
    """Statistics are over the units themselves, or over the entries of each."""
    data, shape, *weights = operation.args[:4]
    dims = tuple(range(data.ndim - len(shape), data.ndim))
    maps: list[Tensor] = []
    for labels in trace.info(data).maps:
        if varying(labels) == dims:
            trace.labels.mark("normalised", labels)
            maps.append(labels)
        else:
            maps += trace.labels.fixed_along(labels, *dims)
    solid = trace.operand(data, data.ndim, only=dims).solid
    own = [trace.operand(w, data.ndim, only=()) for w in weights if isinstance(w, Tensor)]
    go_on(trace, operation, unify(trace.labels, [Operand(tuple(maps), solid), *own]))


def group_norm(trace: Trace, operation: Operation) -> None:
    """The channels of a group share statistics, so a unit is a whole group; a single group is a norm over units."""
    data, weight, bias, *_, groups, _eps = operation.args
    maps = channels(trace, data)
    for labels in maps:
        if groups == 1:
            trace.labels.mark("normalised", labels)
        else:
            members = labels.view(groups, -1)
            trace.labels.tie(members, members[:, :1])
            trace.counts.append(Count(trace.path, "num_groups", labels.flatten()))
    solid = trace.operand(data, data.ndim, only=(1,)).solid
    go_on(trace, operation, unify(trace.labels, [Operand(maps, solid), *vectors(trace, (weight, bias), data.ndim)]))


def channels(trace: Trace, data: Tensor) -> Maps:
    """The map along dimension 1 of a tensor; what varies in others is fixed."""
    others = [d for d in range(data.ndim) if d != 1]
    return tuple(left for m in trace.info(data).maps for left in trace.labels.fixed_along(m, *others))
