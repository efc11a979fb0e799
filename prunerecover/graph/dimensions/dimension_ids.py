"""Dimension ids: a number per index of each dimension of each parameter, tied wherever a forward pass ties indices.

A tensor carries a tuple of maps. A map holds the id of every element along the dimensions of variation and has size 1
elsewhere, and broadcasts to the tensor's shape: `(1, C, 1, 1)` for the channels of images, `(1, 1, H, D)` for queries
viewed as heads. The maps of a tensor vary in different dimensions.

Two tied ids can only be removed together; ids tied to `RIGID` cannot be removed at all. Unknown structure is made
rigid: at worst, a unit is not found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

RIGID = 0
Maps = tuple[Tensor, ...]


@dataclass(frozen=True)
class Owner:
    """The dimension of a parameter or buffer with ids: `start`, `start + 1`, ... for the indices."""

    tensor: str
    dim: int
    start: int
    size: int


@dataclass
class DimensionIds:
    """All ids of a forward pass, and their ties.

    Attributes:
        owners: Owners in order of ids.
        marks: Ids by mark.
        count: Number of ids, including `RIGID`.
        pinned: Ids tied to `RIGID`, or all to each other, since the last clearing.
    """

    owners: list[Owner] = field(default_factory=list)
    marks: dict[str, list[Tensor]] = field(default_factory=dict)
    count: int = 1
    pinned: list[Tensor] = field(default_factory=list)
    _ties: list[Tensor] = field(default_factory=list)

    def of_tensor(self, name: str, tensor: Tensor) -> Maps:
        """Make ids for each dimension of a parameter or buffer with more than one index."""
        maps = []
        for dim, size in enumerate(tensor.shape):
            if size > 1:
                self.owners.append(Owner(name, dim, self.count, size))
                shape = [size if d == dim else 1 for d in range(tensor.ndim)]
                maps.append(torch.arange(self.count, self.count + size).view(shape))
                self.count += size
        return tuple(maps)

    def tie(self, a: Tensor, b: Tensor) -> None:
        """Tie the ids of two maps, element by element after broadcasting."""
        pairs = torch.stack([(a + 0 * b).flatten(), (b + 0 * a).flatten()])
        pairs = pairs[:, pairs[0] != pairs[1]]
        if pairs.numel():
            rigid = pairs[:, (pairs == RIGID).any(0)]
            if rigid.numel():
                self.pinned.append(rigid.max(0).values)
            self._ties.append(torch.unique(pairs, dim=1) if pairs.shape[1] > self.count else pairs)

    def pin(self, *maps: Tensor) -> None:
        """Forbid the removal of any id in these maps."""
        for ids in maps:
            self.tie(ids, torch.tensor(RIGID))

    def mark(self, what: str, *maps: Tensor) -> None:
        """Mark the ids in these maps."""
        self.marks.setdefault(what, []).extend(ids.flatten() for ids in maps)

    def marked(self, what: str) -> np.ndarray:
        """Return, for every id, whether the id has a mark."""
        found = np.zeros(self.count, dtype=bool)
        for ids in self.marks.get(what, ()):
            found[ids.numpy()] = True
        return found

    def fixed_along(self, ids: Tensor, *dims: int) -> Maps:
        """Forbid the removal of single indices along `dims`; ids along the other dimensions of the map stay removable.

        Returns:
            The map without `dims`, or an empty tuple if the map varied in no other dimension.
        """
        for dim in dims:
            if ids.shape[dim] == 1:
                continue
            if varying(ids) == (dim,):
                self.pin(ids)
                return ()
            first = ids.narrow(dim, 0, 1)
            self.tie(ids, first)
            self.pinned.append(ids.flatten())
            ids = first
        return (ids,) if varying(ids) else ()

    def components(self, *, pinned: bool = True) -> np.ndarray:
        """Number the sets of tied ids: a number per id, 0 for rigid ids.

        Args:
            pinned: Whether all ids tied to `RIGID` count as rigid; else only `RIGID` itself is rigid.
        """
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        pairs = torch.cat([*self._ties, torch.empty(2, 0, dtype=torch.long)], dim=1).numpy()
        if not pinned:
            pairs = pairs[:, (pairs != RIGID).all(0)]
        graph = coo_array((np.ones(pairs.shape[1], dtype=bool), (pairs[0], pairs[1])), shape=(self.count, self.count))
        _, numbers = connected_components(graph, directed=False)
        return np.where(numbers == numbers[RIGID], 0, numbers.astype(np.int64) + 1)


def varying(ids: Tensor) -> tuple[int, ...]:
    """Return the dimensions in which a map varies."""
    return tuple(dim for dim, size in enumerate(ids.shape) if size > 1)


def compact(ids: Tensor) -> Tensor:
    """Turn the ids of all elements into a map: size 1 along every constant dimension.

    Expanded dimensions (stride 0) are constant; the first and last element show most of the rest to vary.

    >>> compact(torch.tensor([[1, 2], [1, 2]]))
    tensor([[1, 2]])
    """
    for dim, (size, stride) in enumerate(zip(ids.shape, ids.stride(), strict=True)):
        if size > 1 and stride == 0:
            ids = ids.narrow(dim, 0, 1)
    for dim, size in enumerate(ids.shape):
        if size == 1:
            continue
        first, last = ids.narrow(dim, 0, 1), ids.narrow(dim, size - 1, 1)
        if torch.equal(first, last) and bool((ids == first).all()):
            ids = first
    return ids.contiguous()


def aligned(ids: Tensor, ndim: int) -> Tensor:
    """Prepend dimensions of size 1, as in broadcasting."""
    return ids.reshape((1,) * (ndim - ids.ndim) + tuple(ids.shape))


@dataclass(frozen=True)
class Operand:
    """Operand of an element-wise operation.

    Attributes:
        maps: Maps with as many dimensions as the result.
        solid: Dimensions with a size above 1 and without a map.
    """

    maps: Maps
    solid: tuple[int, ...] = ()


def unify(ids: DimensionIds, operands: Sequence[Operand]) -> Maps:
    """Tie ids that meet element by element, and return the maps of the result."""
    maps: list[Tensor] = []
    for operand in operands:
        fixed = {dim for other in operands if other is not operand for dim in other.solid}
        maps += [left for own in operand.maps for left in ids.fixed_along(own, *fixed)]
    result: list[Tensor] = []
    for new in sorted(maps, key=lambda m: -len(varying(m))):
        result = _join(ids, result, new)
    return tuple(result)


def _join(ids: DimensionIds, maps: list[Tensor], new: Tensor) -> list[Tensor]:
    """Add a map to the maps of a tensor; the new map varies in no more dimensions than each old map."""
    dims = set(varying(new))
    meeting = [own for own in maps if dims & set(varying(own))]
    if not meeting:
        return [*maps, new]
    if len(meeting) == 1:
        outer = set(varying(meeting[0])[: len(dims)])
        if dims == outer:  # the same dimensions, or the outer ones of (heads, head dimension)
            ids.tie(meeting[0], new)
            return maps
    ids.pin(new)
    rest = [own for own in maps if not any(own is other for other in meeting)]
    return rest + [left for own in meeting for left in ids.fixed_along(own, *dims)]
