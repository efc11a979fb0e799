"""Units that leave a side of a layer: the least important, and as many of each part that code cuts a tensor in."""

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

    Those of the least importance per index go first. Where units leave together, what is left over may be less than the
    next ones have; then some give way to others that have more, or more go than need to.

    Args:
        widths: Of the whole network.
        wide: Units along the side.
        other: Units along the layer's other side; what narrows both is no gain.
        excess: By how many indices the side is to be narrowed against the other.
        importance: Of all units.

    Returns:
        The units, and by how much they narrow the side: less than `excess` if there are no more.
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
        units: All of them.
        gain: By how many indices they narrow the side.
        cost: Importance per index.
        runs: How many they are of each run.
    """

    units: tuple[int, ...]
    gain: int
    cost: float
    runs: Counter[int]


class _Choice:
    """Sets that were chosen; of each run one unit must stay.

    Args:
        room: How many units each run has.
        left: How many indices are to go.
    """

    def __init__(self, room: Counter[int], left: int) -> None:
        self.room, self.left = room, left
        self.taken: list[_Set] = []

    def take(self, one: _Set, *, beyond: bool = False) -> bool:
        """Take a set if it fits; `beyond` what is left, too."""
        if (one.gain > self.left and not beyond) or any(self.room[run] <= count for run, count in one.runs.items()):
            return False
        self.taken.append(one)
        self.room -= one.runs
        self.left -= one.gain
        return True

    def swap(self, rest: list[_Set]) -> bool:
        """Replace one set by one that has more indices, as many as are left at best; False: there is none."""
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
    """Sort units into small sets that can leave alone: the least important ones of each part go together.

    Those that cannot in any company are left out.
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
    """Parts that must lose equally many.

    Attributes:
        counts: `(parts, units)`: how often each unit lies in each part.
        least: Units that lie in some parts more often than in others and can go, the least important first.
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
    """Add to a unit the least important ones that even out what parts lose; nothing if there are none."""
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
