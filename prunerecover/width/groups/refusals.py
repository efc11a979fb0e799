"""Reasons for the absence of groups of some kinds in a model: the operations that pin the units."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from torch import Tensor, nn

from prunerecover.graph.dimensions.dimension_ids import RIGID
from prunerecover.graph.dimensions.follower import OUTPUT
from prunerecover.graph.dimensions.ties import Pin, Ties
from prunerecover.model.checks import NAMED, computed_in, listed
from prunerecover.model.narrow.freeing import sizes_heads
from prunerecover.model.paths import get_module
from prunerecover.refusal import Refusal, Stay
from prunerecover.width.groups.found import CountedGroup, FoundGroups, named_operation

KINDS = {"conv": "channel", "linear": "neuron"}


def nothing_found(model: nn.Module, kinds: Sequence[str], looked: FoundGroups) -> Refusal:
    """Return the error for the absence of groups of some kinds, with the reasons and the alternatives.

    Args:
        model: Traced model.
        kinds: Requested kinds.
        looked: Findings in the model.
    """
    found, counted = (*looked.groups, *looked.others), looked.counted
    counts = ", ".join(f"{n} of kind {kind}" for kind, n in Counter(group.kind for group in found).items())
    cause = f"it has {counts or 'none: no product with weights makes units that only other products read'}"
    computed, made_plain = computed_in(model)
    why = _most(stays(looked, kinds))
    if why or computed:
        cause += f". What keeps them: {'; '.join(filter(None, (computed, *why)))}"
    if counted:
        cause += f".{counting(counted).removesuffix('.')}"
    ways = [made_plain] if computed else []
    if "expert" not in kinds and any(group.kind == "expert" for group in found):
        ways.append(
            "Weights of routed experts are fused, so whole experts can go, but none of their neurons: pass "
            'kinds="expert".'
        )
    elif others := sorted({group.kind for group in found}):
        ways.append(f"Narrow those that there are: kinds={tuple(others)}.")
    ways = ways or ["Remove blocks or layers with plan_depth, or what keeps the units from the network's code."]
    return Refusal(f"{type(model).__name__} to have groups of kind {', '.join(kinds)}", cause, " ".join(ways))


def counting(counted: Sequence[CountedGroup]) -> str:
    """Return the sentence with the counting operations."""
    return f" Operations that count units: {', '.join(sorted({one.operation for one in counted}))}."


def stays(found: FoundGroups, kinds: Sequence[str]) -> Iterator[Stay]:
    """Yield the reasons to keep units of some kinds.

    Args:
        found: Groups, and the trace of the pass.
        kinds: Requested kinds.
    """
    for group, error in found.failed.items():
        if group.kind in kinds:
            by = f"code that fails with fewer of them ({error})"
            yield Stay(group.name, by, "take sizes from tensors there, not from numbers")
    for group in found.tied:
        if group.kind in kinds:
            yield Stay(group.name, "others that they are tied to where fewer of them are left", "remove whole layers")
    yield from found.sized if "head_dim" in kinds else ()
    if found.traced is None:
        return
    for attention in found.traced.ties.attentions if {"head", "head_dim"} & set(kinds) else ():
        if sizes_heads(get_module(found.traced.model, attention.path)):
            by = "a head size computed from the number of heads"
            yield Stay(attention.path, by, "use the class itself in place of its subclass")
    for name, pin in _pinned(found.traced.ties, kinds):
        if pin.operation == OUTPUT:
            yield Stay(name, OUTPUT, "give the network another head to change it")
        else:
            by = f"{pin.operation} (`{pin.line}`)" if pin.line else named_operation(pin)
            yield Stay(name, by, "do it another way there, or remove layers as a whole")


def why_stay(found: FoundGroups, kinds: Sequence[str]) -> tuple[str, ...]:
    """Return the main reasons, besides the model's output, to keep units of some kinds, as clauses.

    Args:
        found: Removable groups, and the trace of the pass.
        kinds: Requested kinds.
    """
    return _most(one for one in stays(found, kinds) if one.by != OUTPUT)


def _most(stay: Iterable[Stay]) -> tuple[str, ...]:
    """Return the most frequent reasons; the model's output counts only without further reasons."""
    kept: dict[str, list[str]] = defaultdict(list)
    for one in stay:
        kept[one.by].append(one.name)
    inside = {by: names for by, names in kept.items() if by != OUTPUT} or kept
    most = sorted(inside.items(), key=lambda one: -len(one[1]))[:NAMED]
    return tuple(f"{listed(list(dict.fromkeys(names)))} by {by}" for by, names in most)


def _pinned(ties: Ties, kinds: Sequence[str]) -> Iterator[tuple[str, Pin]]:
    """Yield modules that would make units of some kinds, with the first pin; residual streams are "hidden" alone.

    If no stream is known, because the ties of the inputs of norms and attentions are lost, all products that could make
    a stream count.
    """
    tied, units = ties.ids.components(pinned=False), ties.ids.components()
    streams = tied[ties.ids.marked("stream") | ties.ids.marked("normalised")]
    pins = [(pin, np.unique(tied[pin.ids.numpy()])) for pin in ties.pins]
    others = []
    known = False
    for path, ids, hidden in _would_make(ties, kinds):
        own = ids.numpy()
        stays = len(own) > 1 and ((units[own] == 0).any() or (units[own] == units[own[0]]).all())
        of_stream = bool(np.isin(tied[own], streams).any())
        found = (pin for pin, pinned in pins if np.isin(tied[own[own != RIGID]], pinned).any())
        if stays and (pin := next(found, None)) is not None:
            known |= hidden and of_stream
            if not hidden or of_stream:
                yield path, pin
            else:
                others.append((path, pin))
    yield from () if known else others


def _would_make(ties: Ties, kinds: Sequence[str]) -> Iterator[tuple[str, Tensor, bool]]:
    """Yield modules that would make units of some kinds, the units' ids, and whether the ids must be of a stream."""
    for product in ties.products:
        if KINDS.get(product.op) in kinds:
            yield product.path, product.made, False
        if "hidden" in kinds and product.op != "depthwise":
            yield product.path, product.made, True
    for attention in ties.attentions if {"head", "head_dim"} & set(kinds) else ():
        if len(attention.ids):
            yield attention.path, attention.ids, False
        for product in () if len(attention.ids) else ties.products:  # the ties of the projections are lost
            if product.path.startswith(f"{attention.path}."):
                yield attention.path, product.made, False
