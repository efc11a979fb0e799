"""Units that leave a side of a layer: the least important, in equal numbers from all parts of tensors cut by code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from prunerecover.depth.layers.widths import FIXED, Units, Widths, indices_per_unit


def least_important(
    widths: Widths, wide: Units, other: Units, excess: int, importance: np.ndarray
) -> tuple[list[int], int]:
    """Choose units that narrow one side of a layer.

    Units of the least importance per index go first. Where units leave together, the remaining excess may be smaller
    than the next set; then a chosen set gives way to a larger set, or more units go than necessary.

    Args:
        widths: Widths of the whole network.
        wide: Units along the side.
        other: Units along the layer's opposite side; narrowing both sides is no gain.
        excess: Number of indices to narrow the side by, against the opposite side.
        importance: Importance of all units.

    Returns:
        The units, and the number of indices narrowed: less than `excess` if too few units can go.
    """
    free = widths.removable(wide, other)
    saved = indices_per_unit(wide, len(widths.run)) - indices_per_unit(other, len(widths.run))
    choice = _Choice(Counter(widths.run.tolist()), excess)
    rest = []
    for units in _together(widths, free, importance):
        gain, runs = int(saved[[*units]].sum()), Counter(widths.run[[*units]].tolist())
        if gain > 0:
            rest.append(_Set(units, gain, importance[[*units]].sum() / gain, runs))
    rest = [one for one in sorted(rest, key=lambda one: one.cost) if not choice.take(one)]
    while choice.left > 0 and choice.swap(rest):
        pass
    if choice.left > 0:
        choice.exceed(rest)
    return [unit for one in choice.taken for unit in one.units], excess - choice.left


@dataclass(frozen=True)
class _Set:
    """Units that leave together.

    Attributes:
        units: The units.
        gain: Number of indices by which the side narrows.
        cost: Importance per index.
        runs: Number of units of each run.
    """

    units: tuple[int, ...]
    gain: int
    cost: float
    runs: Counter[int]


class _Choice:
    """Chosen sets; a unit of each run must stay.

    Args:
        room: Number of units of each run.
        left: Number of indices to remove.
    """

    def __init__(self, room: Counter[int], left: int) -> None:
        self.room, self.left = room, left
        self.taken: list[_Set] = []

    def take(self, one: _Set, *, beyond: bool = False) -> bool:
        """Take a set that fits, or, with `beyond`, a set with more indices than are left."""
        if (one.gain > self.left and not beyond) or any(self.room[run] <= count for run, count in one.runs.items()):
            return False
        self.taken.append(one)
        self.room -= one.runs
        self.left -= one.gain
        return True

    def swap(self, rest: list[_Set]) -> bool:
        """Replace a set by a larger set, at best by as many more indices as are left; False: no such pair."""
        costliest = {one.gain: one for one in self.taken}
        pairs = [(gone, new) for gone in costliest.values() for new in rest if 0 < new.gain - gone.gain <= self.left]
        for gone, new in sorted(pairs, key=lambda pair: (pair[0].gain - pair[1].gain, pair[1].cost - pair[0].cost)):
            self._give_back(gone)
            if self.take(new):
                rest[rest.index(new)] = gone
                return True
            self.take(gone)
        return False

    def exceed(self, rest: Sequence[_Set]) -> None:
        """Take a set that has more indices than are left, by as few as possible."""
        beyond = sorted((one for one in rest if one.gain > self.left), key=lambda one: (one.gain, one.cost))
        next((one for one in beyond if self.take(one, beyond=True)), None)

    def _give_back(self, one: _Set) -> None:
        self.taken.remove(one)
        self.room += one.runs
        self.left += one.gain


def _together(widths: Widths, units: Sequence[int], importance: np.ndarray) -> list[tuple[int, ...]]:
    """Sort units into small sets that can leave alone: the least important units of each part go together.

    Units that cannot leave in any company are omitted.
    """
    links = _links(widths, importance)
    in_parts = {unit for link in links for unit in link.least.tolist()}
    taken: set[int] = set()
    sets: list[tuple[int, ...]] = []
    for unit in sorted(units, key=lambda own: importance[own]):
        if unit not in taken:
            company = _completed(unit, links, taken) if unit in in_parts else (unit,)
            taken.update(company)
            sets += [company] if company else []
    return sets


@dataclass(frozen=True, eq=False)
class _Link:
    """Parts that must lose equal numbers of units.

    Attributes:
        counts: Number of indices of each unit in each part, `(parts, units)`.
        least: Free units of unequal counts over the parts, the least important first.
    """

    counts: np.ndarray
    least: Units


def _links(widths: Widths, importance: np.ndarray) -> list[_Link]:
    free = (widths.run != FIXED) & ~np.isin(widths.run, list(widths.bound))
    links = []
    for parts in widths.links:
        counts = np.stack([indices_per_unit(part, len(free)) for part in parts])
        uneven = np.flatnonzero((counts != counts[0]).any(0) & free)
        links.append(_Link(counts, uneven[np.argsort(importance[uneven], kind="stable")]))
    return links


def _completed(unit: int, links: Sequence[_Link], taken: set[int]) -> tuple[int, ...]:
    """Return a unit with the least important company that evens out the losses of parts; empty if impossible."""
    company = [unit]
    while uneven := next((link for link in links if np.ptp(link.counts[:, company].sum(1))), None):
        lost = uneven.counts[:, company].sum(1)
        gain = uneven.counts[lost.argmin(), uneven.least] - uneven.counts[lost.argmax(), uneven.least]
        fitting = (int(u) for u in uneven.least[gain > 0] if u not in taken and u not in company)
        added = next(fitting, None)
        if added is None:
            return ()
        company.append(added)
    return tuple(company)
