"""Sort the ids of a trace: sets that are tied to each other are units, and units that are alike may be a group.

Everything is done for all ids at once: a language model has millions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from prunerecover.graph.dimensions.dimension_ids import DimensionIds

MARKS = ("read", "stream", "normalised")  # by a product; of attentions; that is normed over


@dataclass(frozen=True, eq=False)
class SortedIds:
    """Where each id of a trace belongs.

    Attributes:
        owner: The index of its owner.
        group: The number of the units that its own is alike to, in the order of their components; -1: it is rigid.
        unit: The number of its own among these, in the order of their first ids.
        marked: Whether it is marked.
    """

    owner: np.ndarray
    group: np.ndarray
    unit: np.ndarray
    marked: dict[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class AlikeUnits:
    """Units that have equally many ids of the same owners.

    Attributes:
        among: All ids of the trace.
        number: That these units have there.
        size: How many units there are.
        own: Their ids, in order.
    """

    among: SortedIds
    number: int
    size: int
    own: np.ndarray

    def at(self, ids: Tensor | slice) -> np.ndarray:
        """The unit of each id, -1 for those of none of these units."""
        index = ids.numpy() if isinstance(ids, Tensor) else ids
        return np.where(self.among.group[index] == self.number, self.among.unit[index], -1)

    def touch(self, ids: Tensor) -> bool:
        """Whether any of the ids is of these units."""
        return bool((self.among.group[ids.numpy()] == self.number).any())

    def marked(self, what: str) -> bool:
        """Whether any of their ids is marked."""
        return bool(self.among.marked[what][self.own].any())


def alike_units(ids: DimensionIds) -> Iterator[AlikeUnits]:
    """Yield all units that there are two or more of, alike ones together, in the order of their components."""
    among = sorted_ids(ids)
    free = np.flatnonzero(among.group >= 0)
    by_group = free[np.argsort(among.group[free], kind="stable")]
    sizes = np.bincount(among.group[free])
    for number, own in enumerate(np.split(by_group, np.cumsum(sizes)[:-1])):
        size = int(among.unit[own].max(initial=-1)) + 1
        if size > 1:
            yield AlikeUnits(among, number, size, own)


def sorted_ids(ids: DimensionIds) -> SortedIds:
    """Tell where each id belongs.

    Args:
        ids: Of a forward pass that is over.
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
    """Number components by their footprints, in the order in which these are first seen.

    A footprint says how many ids there are of which owners. They are told apart entry by entry, all at once.

    Args:
        component: Of each id; all of 0, 1, ... are there.
        owner: Of each id.
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
