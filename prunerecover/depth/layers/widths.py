"""Widths of a network while layers are removed: the units of the indices of all tensors.

Every removable index of every dimension of every tensor has the number of a unit (see `groups`); fixed indices have -1.
Units leave one after another, and where a layer gives way to an identity, the units of the layer's input and output
become the same. A sequence of removals therefore needs a single trace of the network.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor, nn

from prunerecover.plan.edits import Narrow, Rewrite
from prunerecover.plan.groups import Group, Setting, Slice
from prunerecover.plan.kinds import WidthKind
from prunerecover.width.groups.assembly import linear_form

FIXED = -1
TensorDim = tuple[str, int]
Units = np.ndarray  # the number of a unit per index along a dimension


@dataclass
class Widths:
    """Units along the dimensions of tensors.

    Attributes:
        along: Number of the unit at each index, by tensor and dimension.
        run: Number of the run of each unit; the units of a run lie evenly beside each other in all tensors.
        kinds: Kind of each unit.
        reads: Dimensions that read units; all further dimensions make units.
        names: Name of each run in edits.
    """

    along: dict[TensorDim, Units]
    run: Units
    kinds: list[WidthKind]
    reads: frozenset[TensorDim]
    names: list[str]
    counts: list[tuple[Units, Setting]] = field(default_factory=list)  # attributes that count units
    bound: frozenset[int] = frozenset()  # runs of which a multiple must stay
    links: tuple[tuple[Units, ...], ...] = ()  # parts that must lose equal numbers of units

    @classmethod
    def of(
        cls,
        model: nn.Module,
        groups: Sequence[Group],
        rewrites: Sequence[Rewrite] = (),
        linked: Sequence[tuple[Group, ...]] = (),
    ) -> Widths:
        """Number the units of all groups.

        Args:
            model: Model with the tensors of the groups.
            groups: Groups, as found by `find_groups`.
            rewrites: Shortcuts named by the groups as the convolutions of later.
            linked: Further groups; the groups of a tuple must lose equal numbers of units.
        """
        groups = (*groups, *(group for together in linked for group in together))
        sizes = {name: tensor.shape for name, tensor in (*model.named_parameters(), *model.named_buffers())}
        sizes |= {f"{edit.unit}.weight": torch.Size((edit.out_channels, edit.in_channels, 1, 1)) for edit in rewrites}
        widths = cls({}, np.empty(0, dtype=np.int64), [], frozenset(), [])
        reads: set[TensorDim] = set()
        runs: list[np.ndarray] = []
        first = 0
        for number, group in enumerate(groups):
            units = torch.arange(group.size)
            for part in group.slices:
                place = part.tensor, part.dim
                size = sizes[part.tensor][part.dim]
                own = widths.along.setdefault(place, np.full(size, FIXED, dtype=np.int64))
                for offset in part.offsets:
                    own[offset : offset + group.size * part.span] = first + units.repeat_interleave(part.span).numpy()
                if not part.makes:
                    reads.add(place)
            widths.counts += [(first + units.numpy(), setting) for setting in group.settings]
            runs.append(np.full(group.size, number, dtype=np.int64))
            widths.kinds += [group.kind] * group.size
            widths.names.append(group.name)
            first += group.size
        widths.run = np.concatenate(runs) if runs else widths.run
        widths.reads = frozenset(reads)
        widths.bound = frozenset(i for i, g in enumerate(groups) if g.multiple > g.strata or g.at_least > 1)
        of = {group: np.flatnonzero(widths.run == number) for number, group in enumerate(groups)}
        strata = (tuple(np.split(of[group], group.strata)) for group in groups if group.strata > 1)
        widths.links = (*strata, *(tuple(of[group] for group in together) for together in linked))
        return widths

    def copy(self) -> Widths:
        """Return a copy, for a trial."""
        return replace(
            self, along=dict(self.along), run=self.run.copy(), names=list(self.names), counts=list(self.counts)
        )

    def units(self, tensor: str, dim: int, size: int) -> Units:
        """Return the units along a dimension; all fixed if there are none."""
        return self.along.get((tensor, dim), np.full(size, FIXED, dtype=np.int64))

    def removable(self, side: Units, other: Units) -> list[int]:
        """List the free units on a single side of a layer."""
        free = np.unique(side[(side != FIXED) & ~np.isin(side, other)])
        return [unit for unit in free.tolist() if int(self.run[unit]) not in self.bound]

    def remove(self, units: Iterable[int]) -> list[Narrow]:
        """Remove units, and return the edits.

        Raises:
            ValueError: If a run would lose all units.
        """
        leaving = np.array(sorted(units), dtype=np.int64)
        edits = []
        for run in np.unique(self.run[leaving]).tolist():
            members = self._ordered(run)
            gone = np.isin(members, leaving)
            edits.append(self._narrow(run, members, gone))
            self._delete(members[gone])
        return edits

    def tie(self, a: Units, b: Units) -> None:
        """Join the units at each position of two dimensions; a fixed unit makes its partner fixed."""
        assert len(a) == len(b)
        pairs = np.unique(np.stack([a, b]), axis=1)
        into = _joined(pairs, len(self.run))
        old_run = self.run
        label: dict[tuple[int, ...], int] = {}
        members: dict[int, set[int]] = {}
        for unit in np.unique(pairs[pairs != FIXED]).tolist():
            if into[unit] != FIXED:
                members.setdefault(int(into[unit]), set()).add(int(old_run[unit]))
        run = old_run.copy()
        for unit, runs in members.items():
            key = tuple(sorted(runs))
            if key not in label:
                label[key] = len(self.names)
                self.names.append(self.names[key[0]])
                if self.bound.intersection(key):
                    self.bound |= {label[key]}
            run[unit] = label[key]
        self.along = {place: _renamed(own, into) for place, own in self.along.items()}
        self.counts = [(_renamed(units, into), setting) for units, setting in self.counts]
        self.links = tuple(tuple(_renamed(part, into) for part in link) for link in self.links)
        absorbed = np.flatnonzero(into != np.arange(len(into)))
        run[absorbed] = FIXED
        self.run = run
        self._split_uneven({*label.values(), *np.unique(old_run[np.unique(pairs[pairs != FIXED])]).tolist()})

    def forget(self, modules: Iterable[str]) -> None:
        """Leave out the tensors of removed modules, and units without any tensor left."""
        gone = set(modules)
        self.along = {place: own for place, own in self.along.items() if place[0].rpartition(".")[0] not in gone}
        held = np.zeros(len(self.run), dtype=bool)
        for own in self.along.values():
            held[own[own != FIXED]] = True
        self.run = np.where(held, self.run, FIXED)

    def _ordered(self, run: int) -> Units:
        """The units of a run, in the order of the indices."""
        members = np.flatnonzero(self.run == run)
        for own in self.along.values():
            here = own[np.isin(own, members)]
            if len(here):
                _, first = np.unique(here, return_index=True)
                return here[np.sort(first)]
        return members

    def _places(self, members: Units) -> dict[TensorDim, np.ndarray]:
        """By dimension, the place of each index's unit among the members; -1 outside the members."""
        place_of = np.full(len(self.run) + 1, FIXED, dtype=np.int64)
        place_of[members] = np.arange(len(members))
        places = {place: place_of[own] for place, own in self.along.items()}
        return {place: own for place, own in places.items() if (own != FIXED).any()}

    def _narrow(self, run: int, members: Units, gone: np.ndarray) -> Narrow:
        parts = []
        for (tensor, dim), own in self._places(members).items():
            form = linear_form(own, len(members))
            if form is None:
                raise ValueError(f"Expected the units of '{self.names[run]}' to lie evenly in '{tensor}'.")
            makes = (tensor, dim) not in self.reads
            parts.append(Slice(tensor=tensor, dim=dim, offsets=form[0], span=form[1], makes=makes))
        settings = []
        for units, setting in self.counts:
            counted = np.isin(units, members)
            if counted.any():
                per_unit, rest = divmod(int(counted.sum()) * setting.per_unit, len(members))
                if rest:
                    raise ValueError(f"Expected '{setting.attribute}' to count the units of '{self.names[run]}'.")
                settings.append(setting.model_copy(update={"per_unit": per_unit}))
        keep = tuple(np.flatnonzero(~gone).tolist())
        return Narrow(
            unit=self.names[run],
            kind=self.kinds[int(members[0])],
            of=len(members),
            keep=keep,
            group=tuple(parts),
            settings=tuple(settings),
        )

    def _delete(self, gone: Units) -> None:
        self.along = {place: own[~np.isin(own, gone)] for place, own in self.along.items()}
        self.counts = [(units[~np.isin(units, gone)], setting) for units, setting in self.counts]
        self.links = tuple(tuple(part[~np.isin(part, gone)] for part in link) for link in self.links)
        self.run[gone] = FIXED

    def _split_uneven(self, runs: Iterable[int]) -> None:
        """Split runs at interruptions of the even order of units."""
        for run in runs:
            members = self._ordered(run)
            places = self._places(members).values()
            if len(members) < 2 or all(linear_form(own, len(members)) is not None for own in places):
                continue
            breaks = np.zeros(len(members), dtype=bool)
            for own in places:
                breaks |= _breaks(own, len(members))
            part = np.cumsum(breaks)
            for number in range(1, int(part[-1]) + 1):
                self.run[members[part == number]] = len(self.names)
                if run in self.bound:
                    self.bound |= {len(self.names)}
                self.names.append(self.names[run])


def _breaks(places: np.ndarray, size: int) -> np.ndarray:
    """Mark each unit that is not directly behind the previous unit, or has another number of indices."""
    positions = np.flatnonzero(places != FIXED)
    counts = np.bincount(places[positions], minlength=size)
    order = positions[np.argsort(places[positions], kind="stable")]
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    breaks = np.zeros(size, dtype=bool)
    for unit in range(1, size):
        before, own = (order[starts[u] : starts[u] + counts[u]] for u in (unit - 1, unit))
        if len(before) != len(own):
            breaks[unit] = True
        elif len(own):
            step = np.unique(own - before)
            runs = np.flatnonzero(np.diff(own) != 1)
            span = int(runs[0]) + 1 if len(runs) else len(own)
            breaks[unit] = len(step) > 1 or int(step[0]) != span
    return breaks


def _renamed(units: Units, into: np.ndarray) -> Units:
    return np.where(units == FIXED, FIXED, into[np.where(units == FIXED, 0, units)])


def _joined(pairs: np.ndarray, size: int) -> np.ndarray:
    """Return, for each unit, the lowest unit joined by pairs; -1 where a joined unit is fixed."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    shifted = pairs + 1  # 0: fixed
    graph = coo_array((np.ones(pairs.shape[1], dtype=bool), (shifted[0], shifted[1])), shape=(size + 1, size + 1))
    _, component = connected_components(graph, directed=False)
    lowest = np.full(int(component.max()) + 1, size + 1, dtype=np.int64)
    np.minimum.at(lowest, component, np.arange(size + 1))
    joined: np.ndarray = lowest[component][1:] - 1
    return joined


def indices_per_unit(side: Units, size: int) -> np.ndarray:
    """Count the indices of each of `size` units along a dimension."""
    return np.bincount(side[side != FIXED], minlength=size)


def importance_per_unit(widths: Widths, along: Mapping[TensorDim, Tensor]) -> np.ndarray:
    """Sum the importances of indices per unit, over all dimensions.

    Args:
        widths: Units of the indices.
        along: Importance of each index, by tensor and dimension, in the present order.
    """
    total = np.zeros(len(widths.run))
    for place, own in widths.along.items():
        values = along.get(place)
        if values is not None:
            mask = own != FIXED
            np.add.at(total, own[mask], values.double().numpy()[mask])
    return total
