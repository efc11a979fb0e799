"""Rules for operations that move elements: views, permutations, parts, repetitions, concatenations, assignments."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves, tree_map

from prunerecover.graph.dimensions.dimension_ids import Maps, Operand, compact, unify, varying
from prunerecover.graph.dimensions.operation import propagate, record_output, unknown
from prunerecover.graph.dimensions.ties import PART, Count, Info, Split, Ties
from prunerecover.graph.dimensions.watching import Operation

VIEWS = ("view", "_unsafe_view", "_reshape_alias")
SPLITS = ("split", "split_with_sizes", "unsafe_split", "unsafe_split_with_sizes")


def fill_constant(ties: Ties, operation: Operation) -> None:
    """Note a tensor of a single value."""
    ties.note(operation.out, Info(constant=True, blank=True))


def same(ties: Ties, operation: Operation) -> None:
    """Copy the ids for copies, and for tensors made in the likeness of another."""
    ties.note(operation.outputs[0], ties.info(operation.args[0]))


def move_elements(ties: Ties, operation: Operation) -> None:
    """Move the ids as the operation moves the elements."""
    data: Tensor = operation.args[0]
    if operation.in_place or not data.numel():  # the shape before is lost, or there are no elements
        unknown(ties, operation)
        return
    info = ties.info(data)
    if operation.name in SPLITS:
        _note_parts(ties, operation, info.maps)
    found: list[list[Tensor]] = [[] for _ in operation.outputs]
    rest, kwargs = tree_map(_on_cpu, (operation.args[1:], operation.kwargs))
    move = torch.reshape if operation.name in VIEWS else operation.func  # strides of ids differ
    for ids in _kept_by_position(ties, operation, info.maps):
        results = tree_leaves(move(ids.expand(data.shape), *rest, **kwargs))
        for maps, result in zip(found, results, strict=True):
            if result.numel() and (new := compact(result)).numel() > 1:
                maps.append(new)
    for out, maps in zip(operation.outputs, found, strict=True):
        ties.note(out, replace(info, maps=tuple(maps)))


def _note_parts(ties: Ties, operation: Operation, maps: Maps) -> None:
    """Note the ids of each part, and a possible attribute of the module around for the length of equal parts."""
    dim = operation.argument(2, "dim", 0) % operation.args[0].ndim
    sizes = [part.shape[dim] for part in operation.outputs]
    splits = [Split(torch.split(ids.flatten(), sizes)) for ids in maps if varying(ids) == (dim,)]
    ties.splits.extend(splits)
    ties.counts.extend(Count(ties.path, PART, split.parts[0]) for split in splits if split.equal)


def _on_cpu(leaf: Any) -> Any:
    """Move an index to the CPU, where `DimensionIds` live."""
    return leaf.cpu() if isinstance(leaf, Tensor) else leaf


def _kept_by_position(ties: Ties, operation: Operation, maps: Maps) -> Maps:
    """Fix ids picked by position: `x[:, 3]`, `x[:, :8]`, `table[index]`.

    Splits are left: a split into wrong sizes fails loudly, and every split is noted. A single weight picked from a
    stack of three or more dimensions is an expert of a mixture: the stack holds no units here.
    """
    data = operation.args[0]
    dims: list[int] = []
    if operation.name in ("select", "slice", "index_select"):
        dim = operation.argument(1, "dim", 0) % data.ndim
        dims = [] if operation.name == "slice" and operation.out.shape[dim] == data.shape[dim] else [dim]
    elif operation.name == "index":
        dims = [d for d, index in enumerate(operation.args[1]) if index is not None]
    picked = [ids for ids in maps if any(ids.shape[d] > 1 for d in dims)]
    if picked and operation.name == "select" and data.ndim > 2 and ties.info(data).static:
        ties.ids.pin(*maps)
        return ()
    alone = [ids for ids in picked if len(varying(ids)) == 1]
    ties.ids.pin(*alone)
    return tuple(ids for ids in maps if not any(ids is other for other in alone))


def restrided(ties: Ties, operation: Operation) -> None:
    """Keep the ids for `as_strided_`, which gives images another memory format; fix all ids in other uses."""
    shape = operation.out.shape
    maps = ties.info(operation.args[0]).maps
    fits = all(m.ndim == len(shape) and all(n in (1, shape[d]) for d, n in enumerate(m.shape)) for m in maps)
    if not operation.in_place or not fits:
        unknown(ties, operation)


def padded(ties: Ties, operation: Operation) -> None:
    """Pad the ids with rigid entries, only along dimensions with units."""
    data, pads = operation.args[:2]
    maps: list[Tensor] = []
    for ids in ties.info(data).maps:
        dims = [data.ndim - 1 - i // 2 for i in range(len(pads))]
        own = [pad if ids.shape[dim] > 1 else 0 for pad, dim in zip(pads, dims, strict=True)]
        if min(own) < 0:
            ties.ids.pin(ids)
        else:
            maps.append(F.pad(ids, own))
    propagate(ties, operation, tuple(maps))


def concatenated(ties: Ties, operation: Operation) -> None:
    """Concatenate ids along the dimension, and tie ids along all others."""
    out = operation.outputs[0]
    tensors = [t for t in operation.args[0] if t.numel() or t.ndim == out.ndim]
    dim = operation.argument(1, "dim", 0) % out.ndim
    operands = [ties.operand(t, out.ndim) for t in tensors]
    beside = [
        Operand(tuple(m for m in o.maps if m.shape[dim] == 1), tuple(d for d in o.solid if d != dim)) for o in operands
    ]
    maps = unify(ties.ids, beside)
    along = [next((m for m in o.maps if m.shape[dim] > 1), None) for o in operands]
    if any(m is not None for m in along):
        others = {varying(m)[0] for m in along if m is not None and len(varying(m)) > 1} - {dim}
        parts = [
            _without_units_along(o, others, out.ndim) if m is None else m for o, m in zip(operands, along, strict=True)
        ]
        shape = [max(p.shape[d] for p in parts) for d in range(out.ndim)]
        sized = [p.expand(*shape[:dim], t.shape[dim], *shape[dim + 1 :]) for p, t in zip(parts, tensors, strict=True)]
        maps = unify(ties.ids, [Operand(maps), Operand((compact(torch.cat(sized, dim)),))])
    ties.record_addends(*(ties.info(t).chain for t in tensors))
    record_output(ties, operation, maps)


def _without_units_along(operand: Operand, others: set[int], ndim: int) -> Tensor:
    """The map of a part without ids along a concatenation: whole heads, where another part cuts heads apart."""
    whole = (m for m in operand.maps if len(varying(m)) == 1 and set(varying(m)) == others)
    return next(whole, torch.zeros((1,) * ndim, dtype=torch.long))


def packed(ties: Ties, operation: Operation) -> None:
    """Keep features along the last dimension when sequences are packed or padded."""
    data, out = operation.args[0], operation.outputs[0]
    others = range(data.ndim - 1)
    features = [left for m in ties.info(data).maps for left in ties.ids.fixed_along(m, *others)]
    record = replace(ties.info(data), maps=tuple(m.flatten().view([1] * (out.ndim - 1) + [-1]) for m in features))
    ties.note(out, record)


def stacked(ties: Ties, operation: Operation) -> None:
    """Tie all operands; the new dimension has no units."""
    out = operation.outputs[0]
    dim = operation.argument(1, "dim", 0) % out.ndim
    maps = unify(ties.ids, [ties.operand(t, out.ndim - 1) for t in operation.args[0]])
    ties.record_addends(*(ties.info(t).chain for t in operation.args[0]))
    record_output(ties, operation, tuple(m.unsqueeze(dim) for m in maps))


def copied(ties: Ties, operation: Operation) -> None:
    """Fix ids written into a part of another tensor, except features of new sequences."""
    target, source = operation.args[:2]
    whole = target._base
    if whole is not None and _fills_features(ties, target, source):
        unify(ties.ids, [ties.operand(source, whole.ndim, only=()), ties.operand(whole, whole.ndim, only=())])
        features = (m.flatten().view([1] * (whole.ndim - 1) + [-1]) for m in ties.info(source).maps)
        ties.note(whole, replace(ties.info(source), maps=tuple(features)))
    elif ties.info(source).maps and not ties.info(target).maps:
        ties.ids.pin(*ties.info(source).maps)
    elif ties.info(target).maps:
        maps = unify(ties.ids, [ties.operand(t, target.ndim) for t in (target, source)])
        propagate(ties, operation, maps)


def _fills_features(ties: Ties, target: Tensor, source: Tensor) -> bool:
    """Whether features fill a part of a new tensor, along the whole last dimension.

    Sequences of different lengths are padded this way (`pad_packed_sequence`).
    """
    whole, maps = target._base, ties.info(source).maps
    if whole is None or not maps or not target.ndim or not (ties.info(whole).blank or ties.info(whole).maps):
        return False
    lasts = ((source.ndim, maps), (whole.ndim, ties.info(whole).maps))
    along = all(varying(m) == (ndim - 1,) for ndim, found in lasts for m in found)
    sizes = {t.shape[-1] for t in (source, target, whole)}
    return along and len(sizes) == 1 and target.stride(-1) == whole.stride(-1) and whole.ndim >= source.ndim


def index_put(ties: Ties, operation: Operation) -> None:
    """Give a new result the ids of the values in `result[rows] = values`."""
    target, indices, values = operation.args[:3]
    info = ties.info(target)
    if len(indices) != 1 or values.ndim != target.ndim or not (info.blank or info.maps):
        unknown(ties, operation)
        return
    own = tuple(left for m in ties.info(values).maps for left in ties.ids.fixed_along(m, 0))
    maps = unify(ties.ids, [ties.operand(target, target.ndim, only=()), Operand(own)])
    ties.record_addends(ties.info(values).chain)
    for tensor in {id(t): t for t in (target, operation.outputs[0])}.values():
        ties.note(tensor, Info(maps, blank=info.blank and not maps))
