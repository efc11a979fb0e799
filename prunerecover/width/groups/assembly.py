"""Groups assembled from the ties of a forward pass.

Sets of tied ids are the units. Units with entries in the same tensors form a group, if the entries lie evenly
(`Slice`), a product with weights makes the units and another product reads them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from prunerecover.graph.dimensions.dimension_ids import Owner
from prunerecover.graph.dimensions.samples import SampleLayout
from prunerecover.graph.dimensions.ties import PART, Count, Location, Product, Statistic, Ties
from prunerecover.graph.trace import Traced
from prunerecover.model.narrow.freeing import sizes_heads
from prunerecover.model.paths import get_module, parent_path
from prunerecover.model.settings import HEADS, KEY_VALUE_HEADS, SHORT_HEADS, alone
from prunerecover.plan.groups import Group, Place, Setting, Slice, Tap
from prunerecover.plan.kinds import WidthKind
from prunerecover.width.groups.alike import AlikeUnits, alike_units
from prunerecover.width.groups.equal_parts import balance
from prunerecover.width.groups.found import CountedGroup, FoundGroups, named_operation

Form = tuple[tuple[int, ...], int]

# Names in attention modules of sizes proportional to the number of heads.
SIZES = ("all_head_size", "attn_dim", "inner_dim", "split_size")
# Names in MLPs of the number of neurons.
NEURONS = ("intermediate_size", "ffn_dim", "hidden_features")
# Names in models, blocks and MLPs of the width of the residual stream.
STREAMS = ("hidden_size", "hidden_dim", "embed_dim", "d_model", "num_features", "head_hidden_size")


def assemble(traced: Traced, *, hidden: bool = False) -> FoundGroups:
    """List all groups of a traced model, in order of depth; groups with a statistic over their units are counted.

    Args:
        traced: Trace of a forward pass.
        hidden: Whether residual streams are included.
    """
    units, found = [], []
    for own in alike_units(traced.ties.ids):
        group = _group(traced, own)
        if group is not None and (hidden or group[1].kind != "hidden"):
            units.append(own)
            found.append(group)
    order = sorted(range(len(found)), key=lambda i: found[i][0])
    groups = named_apart([found[i][1] for i in order])
    over = [found[i][2] for i in order]
    free = [i for i, statistic in enumerate(over) if statistic is None]
    strata, together = balance([units[order[i]] for i in free], traced.ties.splits)
    parted = [
        groups[i] if number == 1 else replace(groups[i], strata=number, multiple=number)
        for i, number in zip(free, strata, strict=True)
    ]
    linked = {i for one in together for i in one}
    return FoundGroups(
        tuple(group for i, group in enumerate(parted) if i not in linked),
        linked=tuple(tuple(parted[i] for i in one) for one in together),
        counted=tuple(
            CountedGroup(group, named_operation(statistic))
            for group, statistic in zip(groups, over, strict=True)
            if statistic is not None
        ),
    )


def linear_form(units: np.ndarray, size: int) -> Form | None:
    """Write the positions of units as offsets and a span, as in a `Slice`.

    Args:
        units: Unit at each position, `(n,)`, -1 for none.
        size: Number of units, at least 2.

    Returns:
        Offsets and span; None if the units do not lie evenly.

    >>> linear_form(np.array([0, 0, 1, 1, -1, 0, 0, 1, 1]), 2)
    ((0, 5), 2)
    """
    positions = np.flatnonzero(units >= 0)
    order = positions[np.argsort(units[positions], kind="stable")]
    if (
        not len(order)
        or len(order) % size
        or (np.bincount(units[positions], minlength=size) != len(order) // size).any()
    ):
        return None
    table = order.reshape(size, -1)
    span = int(table[1, 0] - table[0, 0])
    if span < 1 or table.shape[1] % span or (np.diff(table, axis=0) != span).any():
        return None
    parts = table[0].reshape(-1, span)
    if (parts != parts[:, :1] + np.arange(span)).any():
        return None
    return tuple(parts[:, 0].tolist()), span


def _group(traced: Traced, units: AlikeUnits) -> tuple[int, Group, Statistic | None] | None:
    """Describe a group, named by the weight that makes the units; None if the units form no group.

    Returns:
        Number of the first product, the group, and the first statistic over the units.
    """
    model, ties = traced.model, traced.ties
    dense = [(i, p) for i, p in enumerate(ties.products) if p.op != "depthwise" and units.touch(p.made)]
    if not dense or not any(units.touch(p.read) for p in ties.products):
        return None
    kind = _kind(model, ties, units, [p for _, p in dense])
    slices = _slices(ties, units)
    if kind is None or slices is None:
        return None
    owner: Owner = ties.ids.owners[units.among.owner[int(dense[0][1].made[0])]]
    group = Group(
        name=owner.tensor,
        kind=kind,
        size=units.size,
        slices=slices,
        taps=tuple(_seen_by_sample(traced.layouts, tap) for tap in _taps(ties, kind, units)),
        settings=(*_settings(model, ties, units), *_repeated(model, ties, kind, slices, units.size)),
        products=_macs_per_unit(traced, units),
    )
    over = next((statistic for statistic in ties.statistics if units.touch(statistic.ids)), None)
    return dense[0][0], group, over


def _kind(model: nn.Module, ties: Ties, units: AlikeUnits, dense: list[Product]) -> WidthKind | None:
    """Return the kind of units; features of a stream come from several products, and are read by attention or norms.

    Units made for attention by a single product, such as DeepSeek's latent vectors, have no kind.
    """
    attentions = [a for a in ties.attentions if units.touch(a.ids)]
    if attentions:
        return None if any(sizes_heads(get_module(model, a.path)) for a in attentions) else "head"
    if units.marked("stream"):
        return "hidden" if len(dense) > 1 else None
    if any(p.op == "conv" for p in dense):
        return "channel"
    return "hidden" if units.marked("normalised") and len(dense) > 1 else "neuron"


def _slices(ties: Ties, units: AlikeUnits) -> tuple[Slice, ...] | None:
    owners: list[Owner] = ties.ids.owners
    slices = []
    for index in np.unique(units.among.owner[units.own]).tolist():
        owner = owners[index]
        own = slice(owner.start, owner.start + owner.size)
        unit_of = units.at(own)
        form = linear_form(unit_of, units.size)
        if form is None:
            return None
        reads = bool(units.among.marked["read"][own][unit_of >= 0].any())
        slices.append(Slice(tensor=owner.tensor, dim=owner.dim, offsets=form[0], span=form[1], makes=not reads))
    return tuple(slices)


def _taps(ties: Ties, kind: WidthKind, units: AlikeUnits) -> tuple[Tap, ...]:
    """Return the taps of units: heads and neurons at the input of their only reader, further kinds at addends.

    Features of a stream are seen at the outputs of norms, as read by the next modules.
    """
    normed = [location for location in ties.normed if units.touch(location.ids)]
    readers = [seen for seen, read in ties.readers if units.touch(read) and units.touch(seen.ids)]
    alone = len({seen.path for seen in readers}) == 1
    seen: Iterable[Location] = ties.addends
    if kind == "head" or (kind == "neuron" and alone):
        seen = readers[:1]
    elif kind == "hidden" and normed:
        seen = normed
    return tuple(dict.fromkeys(tap for location in seen for tap in _taps_at(location, units)))


def _taps_at(seen: Location, units: AlikeUnits) -> list[Tap]:
    """Return a tap per stretch of units: both directions of a recurrent layer lie one after the other."""
    form = linear_form(units.at(seen.ids), units.size)
    offsets, span = ((), 1) if form is None else form
    return [Tap(module=seen.path, of=seen.of, dim=seen.dim, offset=offset, span=span) for offset in offsets]


def _seen_by_sample(layouts: Mapping[Place, SampleLayout], tap: Tap) -> Tap:
    layout = layouts.get((tap.module, "input" if tap.of == "input" else "output"), SampleLayout())
    return replace(tap, samples=layout.dim, apart=layout.apart)


def _settings(model: nn.Module, ties: Ties, units: AlikeUnits) -> tuple[Setting, ...]:
    """Return the attributes that count the group's units."""
    settings = []
    for count in ties.counts:
        value = _counted(get_module(model, count.path), count)
        unit_of = units.at(count.ids)
        among = np.bincount(unit_of[unit_of >= 0], minlength=units.size) * value  # the count may span more units
        if among.any() and (among == among[0]).all() and among[0] % len(unit_of) == 0:
            each = int(among[0]) // len(unit_of)
            settings.append(Setting(module=count.path, attribute=count.attribute, per_unit=each))
    for attention in ties.attentions:
        if not units.touch(attention.ids):
            continue
        for name, value in vars(get_module(model, attention.path)).items():
            known = name in (*HEADS, *KEY_VALUE_HEADS, *SIZES) and type(value) is int and value % units.size == 0
            if known or (name in SHORT_HEADS and type(value) is int and value == units.size):
                settings.append(Setting(module=attention.path, attribute=name, per_unit=value // units.size))
    return tuple(dict.fromkeys(settings))


def _counted(module: nn.Module, count: Count) -> int:
    """Return the attribute's value, or 0 if absent or if the name has another meaning in the module."""
    if count.attribute == "num_features" and not isinstance(module, _NormBase):
        return 0
    value = alone(getattr(module, count.attribute, 0))
    if not isinstance(value, int) or (count.attribute == PART and value != len(count.ids)):
        return 0
    return value


def _repeated(
    model: nn.Module, ties: Ties, kind: WidthKind, slices: tuple[Slice, ...], size: int
) -> tuple[Setting, ...]:
    """Return the attributes of MLPs with the number of neurons, and of modules around a stream with its width.

    Attentions are left out, as equal names there hold the width of all heads.
    """
    holders = dict.fromkeys(parent_path(parent_path(part.tensor)) for part in slices)
    names = {"neuron": NEURONS, "hidden": STREAMS}.get(kind, ())
    if kind == "hidden":
        attentions = {attention.path for attention in ties.attentions}
        holders = {path: None for path in _all_above(holders) if path not in attentions}
    return tuple(
        Setting(module=path, attribute=name)
        for path in holders
        for name, value in vars(get_module(model, path)).items()
        if name in names and type(value) is int and value == size
    )


def _all_above(paths: Iterable[str]) -> Iterator[str]:
    """Yield paths and the paths of all modules around them, each once."""
    seen = set()
    for path in paths:
        while path not in seen:
            yield path
            seen.add(path)
            path = parent_path(path)


def _macs_per_unit(traced: Traced, units: AlikeUnits) -> int:
    macs = (own.macs * int((units.at(own.ids) == 0).sum()) for own in traced.ties.attentions)
    return sum(macs) // traced.inputs.n_samples


def named_apart(groups: Sequence[Group]) -> tuple[Group, ...]:
    """Name groups, first named by a tensor, by the tensor's module; groups of a kind in a module get suffixes."""
    named: dict[tuple[str, str], Group] = {}
    for group in groups:
        name = next(name for name in _names(group) if (group.kind, name) not in named)
        named[group.kind, name] = replace(group, name=name)
    return tuple(named.values())


def _names(group: Group) -> Iterator[str]:
    """Yield possible names of a group named by a tensor: the module, the module with an offset, or the tensor."""
    tensor = group.name
    module = parent_path(tensor) or tensor  # parameters of the model itself keep their names
    start = next((part.offsets[0] for part in group.slices if part.tensor == tensor), 0)
    yield module
    if start:
        yield f"{module}:{start}"
    yield tensor
    yield from (f"{tensor}:{start + number}" for number in itertools.count())
