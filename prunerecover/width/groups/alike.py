"""Sorted ids of a trace: tied sets of ids are units, and alike units are candidates for a group.

All ids are processed at once: a language model has millions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from prunerecover.graph.dimensions.dimension_ids import DimensionIds

MARKS = ("read", "stream", "normalised")  # read by a product; input of attentions; normed over


@dataclass(frozen=True, eq=False)
class SortedIds:
    """Owner, group and unit of each id of a trace.

    Attributes:
        owner: Index of the id's owner.
        group: Number of the alike units around the id, in the order of their components; -1 for a rigid id.
        unit: Number of the id's unit among the alike units, in the order of their first ids.
        marked: Masks of marked ids, by mark.
    """

    owner: np.ndarray
    group: np.ndarray
    unit: np.ndarray
    marked: dict[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class AlikeUnits:
    """Units with equally many ids of the same owners.

    Attributes:
        among: All ids of the trace.
        number: Number of the alike units in `among`.
        size: Number of units.
        own: Ids of the units, in order.
    """

    among: SortedIds
    number: int
    size: int
    own: np.ndarray

    def at(self, ids: Tensor | slice) -> np.ndarray:
        """Return the unit of each id, -1 for ids outside the units."""
        index = ids.numpy() if isinstance(ids, Tensor) else ids
        return np.where(self.among.group[index] == self.number, self.among.unit[index], -1)

    def touch(self, ids: Tensor) -> bool:
        """Whether any of the ids belongs to a unit."""
        return bool((self.among.group[ids.numpy()] == self.number).any())

    def marked(self, what: str) -> bool:
        """Whether any id of the units is marked."""
        return bool(self.among.marked[what][self.own].any())


def alike_units(ids: DimensionIds) -> Iterator[AlikeUnits]:
    """Yield all sets of two or more alike units, in the order of their components."""
    among = sorted_ids(ids)
    free = np.flatnonzero(among.group >= 0)
    by_group = free[np.argsort(among.group[free], kind="stable")]
    sizes = np.bincount(among.group[free])
    for number, own in enumerate(np.split(by_group, np.cumsum(sizes)[:-1])):
        size = int(among.unit[own].max(initial=-1)) + 1
        if size > 1:
            yield AlikeUnits(among, number, size, own)


def sorted_ids(ids: DimensionIds) -> SortedIds:
    """Return the owner, group and unit of each id.

    Args:
        ids: Ids of a finished forward pass.
    """
    component = ids.components()
    owner = np.repeat(np.arange(-1, len(ids.owners)), [1, *(owner.size for owner in ids.owners)])
    free = np.flatnonzero(component)
    _, first, own = np.unique(component[free], return_index=True, return_inverse=True)
    kind = _footprints(own, owner[free])
    order = np.lexsort((first, kind))
    starts = np.flatnonzero(np.diff(kind[order], prepend=-1))
    unit = np.empty_like(order)
    unit[order] = np.arange(len(order)) - np.repeat(starts, np.diff(starts, append=len(order)))
    group, number = np.full(ids.count, -1), np.full(ids.count, -1)
    group[free], number[free] = kind[own], unit[own]
    return SortedIds(owner, group, number, {what: ids.marked(what) for what in MARKS})


def _footprints(component: np.ndarray, owner: np.ndarray) -> np.ndarray:
    """Number components by their footprints, in the order of first appearance.

    A footprint is the number of ids per owner. Components are told apart entry by entry, all at once.

    Args:
        component: Component of each id; all of 0, 1, ... are present.
        owner: Owner of each id.
    """
    if not len(component):
        return component
    width = int(owner.max()) + 1
    keys, counts = np.unique(component * width + owner, return_counts=True)
    _, entries = np.unique(keys % width * (int(counts.max()) + 1) + counts, return_inverse=True)
    starts = np.flatnonzero(np.diff(keys // width, prepend=-1))
    lengths = np.diff(starts, append=len(keys))
    number = np.zeros_like(lengths)
    for place in range(int(lengths.max())):
        longer = np.flatnonzero(lengths > place)
        seen = number[longer] * len(keys) + entries[starts[longer] + place]
        _, number[longer] = np.unique(seen, return_inverse=True)
    _, first, number = np.unique(lengths * len(lengths) + number, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[number]
