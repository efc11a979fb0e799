"""Groups of head dimensions: one per attention, with the dimensions of all heads as units.

A group of head dimensions lies inside a group of heads with a stretch of equal length per head: dimension `u` of every
head is at `u` in the head's stretch. Heads are refused with the reason if queries, keys and values cannot be told apart
by place, or if a trial shows operations beyond products and sums (`trial`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os.path import commonprefix

from torch import nn

from prunerecover.graph.trace import Traced
from prunerecover.model.hooks import Called, calls_of
from prunerecover.model.paths import get_module, parent_path
from prunerecover.plan.groups import Group, Setting, Slice
from prunerecover.refusal import Stay
from prunerecover.width.heads.layout import HeadLayout
from prunerecover.width.heads.trial import HeadTrial

# Names in attention modules of the head size, and of a scale of logits by the head size.
SIZES = ("head_dim", "attention_head_size", "head_size", "dim_head", "dim_per_head", "key_value_proj_dim", "d_head")
SCALES = ("scale", "scaling", "scale_factor", "softmax_scale", "inv_norm_factor", "norm_factor", "sqrt_head_dim")
LONGEST = 100  # characters of an error message


class _SizeStays(Exception):  # noqa: N818  # caught below
    """Refusal to change the head size of an attention."""

    def __init__(self, by: str, way_out: str = "remove whole heads") -> None:
        super().__init__(by, way_out)


def find_head_sizes(traced: Traced, heads: Sequence[Group]) -> tuple[tuple[Group, ...], tuple[Stay, ...]]:
    """Return the groups of head dimensions in a network, and the reasons why other heads keep their size.

    Args:
        traced: Trace of a forward pass; its model is in evaluation mode, and bit-identical afterwards.
        heads: Groups of removable heads.
    """
    groups, stay = list[Group](), list[Stay]()
    called = calls_of(traced.model, map(_around, heads), traced.inputs) if heads else {}
    for group in heads:
        try:
            layout, settings, power = _tried(traced.model, group, called)
        except _SizeStays as reason:
            stay.append(Stay(f"{group.name}:head_dim", *reason.args))
        else:
            groups.append(_group(group, layout, settings, power))
    return tuple(groups), tuple(stay)


def _group(heads: Group, layout: HeadLayout, settings: tuple[Setting, ...], power: float) -> Group:
    return Group(
        name=f"{heads.name}:head_dim",
        kind="head_dim",
        size=layout.size,
        slices=layout.slices,
        settings=settings,
        products=heads.products * heads.size // layout.size,
        scaled_by=power,
    )


def _around(heads: Group) -> str:
    """Return the path of the innermost module around all tensors of a group."""
    paths = [parent_path(part.tensor).split(".") for part in heads.slices]
    return ".".join(commonprefix(paths))


def _tried(
    model: nn.Module, heads: Group, called: Mapping[str, Called]
) -> tuple[HeadLayout, tuple[Setting, ...], float]:
    """Return the layout of heads, the attributes with the head size, and the power of the head size in the logits."""
    layout, path = _layout(model, heads), _around(heads)
    settings = _settings(model, heads, layout)
    if path not in called:
        raise _SizeStays("a call that the example does not make, or not with tensors", "pass inputs that make it")
    try:
        module, inner = get_module(model, path), layout.inside(path)
        trial = HeadTrial.of(module, called[path], inner, _inside(settings, path))
        if not trial.reads_one_input():
            raise _SizeStays("queries and keys that are made of different inputs")
        ordered = (one for one in layout.orders() if replace(trial, layout=one.inside(path)).by_products_alone())
        found = next(ordered, None)
        if found is None:
            raise _SizeStays(_more_than_products(module, trial))
        power = replace(trial, layout=found.inside(path)).scaled_by()
    except _SizeStays:
        raise
    except Exception as error:  # code may raise anything when sizes do not fit
        why = f"{type(error).__name__}: {' '.join(str(error).split())[:LONGEST]}"
        raise _SizeStays(f"code that fails with smaller heads ({why})", "take sizes from tensors there") from None
    if power is None:
        by = "logits that do not show how they are scaled"
        raise _SizeStays(by, "pass inputs of several tokens, or scale by the root of the size of a head")
    return found, settings, power


def _inside(settings: Sequence[Setting], path: str) -> tuple[Setting, ...]:
    before = len(path) + 1 if path else 0
    return tuple(one.model_copy(update={"module": one.module[before:]}) for one in settings)


def _layout(model: nn.Module, heads: Group) -> HeadLayout:
    """Return the places of queries, keys and values in the tensors of heads; values are not identified yet."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    wide = [part for part in heads.slices if part.span > 1]  # tables of position biases have a number per head
    made, read = ([p for p in wide if p.makes == makes and tensors[p.tensor].ndim > 1] for makes in (True, False))
    weights = [_by_head(part, offset, heads.size) for part in made for offset in part.offsets]
    spans = sorted({part.span for part in made})
    if len(read) != 1 or len(read[0].offsets) != 1 or not spans:
        raise _SizeStays(f"{len(read)} weights that read heads, in place of a single weight")
    size = read[0].span
    if spans[0] < size:
        raise _SizeStays("keys and values that groups of heads share")
    if spans != [size]:
        raise _SizeStays(f"queries, keys and values that lie together for each head in '{made[0].tensor}'")
    if len(weights) != 3:
        raise _SizeStays(f"{len(weights)} matrices that make its heads, in place of queries, keys and values")
    if any(tensors[part.tensor].ndim != 2 for part in (*made, *read)):
        raise _SizeStays("convolutions that make its heads")
    vectors = [part for part in wide if part.makes and tensors[part.tensor].ndim == 1]
    biases = _biases([_by_head(part, offset, heads.size) for part in vectors for offset in part.offsets], weights)
    return HeadLayout(size, tuple(weights), biases, _by_head(read[0], read[0].offsets[0], heads.size))


def _by_head(part: Slice, offset: int, heads: int) -> Slice:
    """Return a slice with a stretch per head, in single dimensions."""
    offsets = tuple(offset + head * part.span for head in range(heads))
    return Slice(tensor=part.tensor, dim=part.dim, offsets=offsets, span=1, makes=part.makes)


def _biases(vectors: Sequence[Slice], weights: Sequence[Slice]) -> tuple[Slice | None, ...]:
    """Return the biases of queries, keys and values, at the same places of the same modules as the weights."""
    by_place = {(parent_path(part.tensor), part.offsets): part for part in vectors}
    found = tuple(by_place.pop((parent_path(part.tensor), part.offsets), None) for part in weights)
    if by_place:
        raise _SizeStays(f"'{next(iter(by_place.values())).tensor}', which is no bias of queries, keys or values")
    return found


def _settings(model: nn.Module, heads: Group, layout: HeadLayout) -> tuple[Setting, ...]:
    """Return the attributes that depend on the head size: the size, the size of all heads, and the scale of logits."""
    found = [
        setting.model_copy(update={"per_unit": setting.per_unit // layout.size * heads.size})
        for setting in heads.settings
        if setting.per_unit % layout.size == 0
    ]
    tensors = [parent_path(part.tensor) for part in layout.slices]
    for path in dict.fromkeys((*map(parent_path, tensors), *tensors, *(setting.module for setting in heads.settings))):
        for name, value in vars(get_module(model, path)).items():
            if name in SIZES and type(value) is int and value == layout.size:
                found.append(Setting(module=path, attribute=name))
            elif name in SCALES and isinstance(value, float):
                scales = (Setting(module=path, attribute=name, power=power) for power in (-0.5, 0.5))
                found += (scale for scale in scales if math.isclose(value, scale.value(layout.size), rel_tol=1e-6))
    return tuple(dict.fromkeys(found))


def _more_than_products(module: nn.Module, trial: HeadTrial) -> str:
    """Name the operation of an attention on its heads beyond products of queries and keys and sums of values."""
    layout = trial.layout
    if not any(replace(trial, layout=one).by_products_alone(products=False) for one in layout.orders()):
        return "a gate or a norm between its heads and the weight that reads them"
    heads = {part.tensor for part in layout.slices}
    for path, parameter in module.named_parameters():
        if path not in heads and parameter.ndim and parameter.shape[-1] == layout.size:
            what = "norms of queries and keys" if parameter.ndim == 1 else "positions in a table as wide as a head"
            return f"{what} ('{path}')"
    return "rotary positions, or cosines of queries and keys"
