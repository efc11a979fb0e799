"""Turn what a forward pass tied together into groups.

The sets of ids tied to each other are the units. Units with entries in the same tensors form a group, if the entries
lie evenly (`Slice`), some product with weights makes them and another reads them.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from torch import Tensor, nn

from prunerecover.model.paths import get_module, parent_path
from prunerecover.model.settings import HEADS, KEY_VALUE_HEADS
from prunerecover.plan.groups import Group, Setting, Site, Slice
from prunerecover.plan.kinds import WidthKind
from prunerecover.width.groups.counted import CountedGroup, named_operation
from prunerecover.width.tracing.dimension_ids import Owner
from prunerecover.width.tracing.trace import Location, Product, Statistic, Trace

Form = tuple[tuple[int, ...], int]

# What attention modules call sizes that follow from the number of their heads.
SIZES = ("all_head_size", "attn_dim", "inner_dim", "split_size")
# What MLPs call the number of their neurons.
NEURONS = ("intermediate_size", "ffn_dim", "hidden_features")


def assemble(model: nn.Module, trace: Trace, samples: int) -> tuple[tuple[Group, ...], tuple[CountedGroup, ...]]:
    """List all groups of a traced model, in order of depth, and apart those that statistics are taken over.

    Args:
        model: What was traced.
        trace: What was noted.
        samples: How many samples the traced batch had.
    """
    units = _Units(trace)
    found = [group for members in units.alike() if (group := _group(model, units, members, samples)) is not None]
    found.sort(key=lambda each: each[0])
    groups = named_apart([group for _, group, _ in found])
    over = [statistic for *_, statistic in found]
    free = tuple(group for group, statistic in zip(groups, over, strict=True) if statistic is None)
    return free, tuple(
        CountedGroup(group, named_operation(statistic))
        for group, statistic in zip(groups, over, strict=True)
        if statistic is not None
    )


@dataclass
class _Units:
    """The components of a trace's ids, and their entries."""

    trace: Trace

    @cached_property
    def component(self) -> np.ndarray:
        """The component of each id; 0 is rigid."""
        return self.trace.ids.components()

    @cached_property
    def owner(self) -> np.ndarray:
        """The index of each id's owner."""
        sizes = [1, *(owner.size for owner in self.trace.ids.owners)]
        return np.repeat(np.arange(-1, len(sizes) - 1), sizes)

    def alike(self) -> Iterable[np.ndarray]:
        """Yield, for each group, its components in the order of their first ids."""
        owners = len(self.trace.ids.owners)
        free = np.flatnonzero(self.component)
        keys, counts = np.unique(self.component[free] * owners + self.owner[free], return_counts=True)
        footprints: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for key, count in zip(keys.tolist(), counts.tolist(), strict=True):
            footprints[key // owners].append((key % owners, count))
        alike: dict[tuple[tuple[int, int], ...], list[int]] = defaultdict(list)
        for component, footprint in footprints.items():
            alike[tuple(footprint)].append(component)
        _, first = np.unique(self.component, return_index=True)
        position = dict(zip(self.component[first].tolist(), first.tolist(), strict=True))
        for members in alike.values():
            if len(members) > 1:
                yield np.array(sorted(members, key=position.__getitem__))

    def tensor_of(self, ids: Tensor) -> str:
        """The tensor that ids of one dimension belong to."""
        owner: Owner = self.trace.ids.owners[self.owner[int(ids[0])]]
        return owner.tensor

    @cached_property
    def marked(self) -> dict[str, np.ndarray]:
        """Whether each id is "read" by a product, belongs to a "stream", or is "normalised" over."""
        return {what: self.trace.ids.marked(what) for what in ("read", "stream", "normalised")}


def linear_form(units: np.ndarray, size: int) -> Form | None:
    """Write the positions of units as offsets and a span, as a `Slice` does.

    Args:
        units: `(n,)`, the unit at each position, -1 for none.
        size: How many units there are, at least 2.

    Returns:
        None if the units do not lie evenly.

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


def _group(
    model: nn.Module, units: _Units, members: np.ndarray, samples: int
) -> tuple[int, Group, Statistic | None] | None:
    """Describe one group, named by the weight that makes it; None: it is none.

    Returns:
        The number of its first product, the group, and the first statistic that is taken over its units.
    """
    trace = units.trace
    number = np.full(int(units.component.max()) + 1, -1)
    number[members] = np.arange(len(members))
    unit_of = number[units.component]
    dense = [(i, p) for i, p in enumerate(trace.products) if p.op != "depthwise" and _touches(unit_of, p.made)]
    if not dense or not any(_touches(unit_of, p.read) for p in trace.products):
        return None
    kind = _kind(model, units, unit_of, [p for _, p in dense])
    slices = _slices(trace, units, unit_of, len(members))
    if kind is None or slices is None:
        return None
    group = Group(
        name=units.tensor_of(dense[0][1].made),
        kind=kind,
        size=len(members),
        slices=slices,
        sites=_sites(trace, kind, unit_of, len(members)),
        settings=(*_settings(model, trace, unit_of, len(members)), *_repeated(model, kind, slices, len(members))),
        products=_macs_per_unit(trace, unit_of, samples),
    )
    over = next((statistic for statistic in trace.statistics if _touches(unit_of, statistic.ids)), None)
    return dense[0][0], group, over


def _touches(unit_of: np.ndarray, ids: Tensor) -> bool:
    return bool((unit_of[ids.numpy()] >= 0).any())


def _kind(model: nn.Module, units: _Units, unit_of: np.ndarray, dense: list[Product]) -> WidthKind | None:
    """Tell heads, channels and neurons apart; a residual stream that attention reads, or that is normed, is none."""

    def marked(what: str) -> bool:
        return bool((unit_of[units.marked[what]] >= 0).any())

    attentions = [a for a in units.trace.attentions if _touches(unit_of, a.ids)]
    if attentions:
        whole = any(isinstance(get_module(model, a.path), nn.MultiheadAttention) for a in attentions)
        return None if whole else "head"
    if marked("stream"):
        return None
    if any(p.op == "conv" for p in dense):
        return "channel"
    return None if marked("normalised") and len(dense) > 1 else "neuron"


def _slices(trace: Trace, units: _Units, unit_of: np.ndarray, size: int) -> tuple[Slice, ...] | None:
    owners: list[Owner] = trace.ids.owners
    slices = []
    for index in np.unique(units.owner[unit_of >= 0]).tolist():
        owner = owners[index]
        own = slice(owner.start, owner.start + owner.size)
        form = linear_form(unit_of[own], size)
        if form is None:
            return None
        reads = bool(units.marked["read"][own][unit_of[own] >= 0].any())
        slices.append(Slice(tensor=owner.tensor, dim=owner.dim, offsets=form[0], span=form[1], makes=not reads))
    return tuple(slices)


def _sites(trace: Trace, kind: WidthKind, unit_of: np.ndarray, size: int) -> tuple[Site, ...]:
    """Where units are seen: heads and neurons in what the only module that reads them is given, others as addends."""
    readers = [seen for seen, read in trace.readers if _touches(unit_of, read) and _touches(unit_of, seen.ids)]
    alone = len({seen.path for seen in readers}) == 1
    seen = readers[:1] if kind == "head" or (kind == "neuron" and alone) else trace.addends
    return tuple(dict.fromkeys(site for s in seen if (site := _site(s, unit_of, size)) is not None))


def _site(seen: Location, unit_of: np.ndarray, size: int) -> Site | None:
    form = linear_form(unit_of[seen.ids.numpy()], size)
    if form is None or len(form[0]) > 1:
        return None
    return Site(module=seen.path, of=seen.of, dim=seen.dim, offset=form[0][0], span=form[1])


def _settings(model: nn.Module, trace: Trace, unit_of: np.ndarray, size: int) -> tuple[Setting, ...]:
    """Find the attributes that count the group's units."""
    settings = []
    for count in trace.counts:
        value = getattr(get_module(model, count.path), count.attribute, None)
        if isinstance(value, int) and value % size == 0 and (unit_of[count.ids.numpy()] >= 0).all():
            settings.append(Setting(module=count.path, attribute=count.attribute, per_unit=value // size))
    for attention in trace.attentions:
        if not _touches(unit_of, attention.ids):
            continue
        for name, value in vars(get_module(model, attention.path)).items():
            if name in (*HEADS, *KEY_VALUE_HEADS, *SIZES) and type(value) is int and value % size == 0:
                settings.append(Setting(module=attention.path, attribute=name, per_unit=value // size))
    return tuple(dict.fromkeys(settings))


def _repeated(model: nn.Module, kind: WidthKind, slices: tuple[Slice, ...], size: int) -> tuple[Setting, ...]:
    """Find the attributes of MLPs that repeat how many neurons they have."""
    holders = dict.fromkeys(parent_path(parent_path(part.tensor)) for part in slices) if kind == "neuron" else {}
    return tuple(
        Setting(module=path, attribute=name)
        for path in holders
        for name, value in vars(get_module(model, path)).items()
        if name in NEURONS and type(value) is int and value == size
    )


def _macs_per_unit(trace: Trace, unit_of: np.ndarray, samples: int) -> int:
    total = 0
    for attention in trace.attentions:
        total += attention.macs * int((unit_of[attention.ids.numpy()] == 0).sum())
    return total // samples


def named_apart(groups: Sequence[Group]) -> tuple[Group, ...]:
    """Name groups, named by the tensor that makes them, by its module; those of one kind that share it differ."""
    named: dict[tuple[str, str], Group] = {}
    for group in groups:
        name = next(name for name in _names(group) if (group.kind, name) not in named)
        named[group.kind, name] = replace(group, name=name)
    return tuple(named.values())


def _names(group: Group) -> Iterator[str]:
    """Yield what a group, named by a tensor, may be called: by its module, where it begins there, or by its tensor."""
    tensor = group.name
    module = parent_path(tensor) or tensor  # parameters of the model itself stand for themselves
    start = next((part.offsets[0] for part in group.slices if part.tensor == tensor), 0)
    yield module
    if start:
        yield f"{module}:{start}"
    yield tensor
    yield from (f"{tensor}:{start + number}" for number in itertools.count())
