"""Dimension ids: one number per index of each dimension of each parameter, tied wherever a forward pass ties them.

What a tensor carries is a tuple of maps. A map holds the id of every element along the dimensions that it varies in
and has size 1 elsewhere, so it broadcasts to the tensor's shape: `(1, C, 1, 1)` for the channels of images,
`(1, 1, H, D)` for queries viewed as heads. The maps of one tensor vary in different dimensions.

Two ids that are tied can only be removed together; ids tied to `RIGID` cannot be removed at all. So whatever
is not understood is made rigid, and the worst that can happen is that a unit is not found.
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
    """The dimension of a parameter or buffer that ids were made for: its indices have `start`, `start + 1`, ..."""

    tensor: str
    dim: int
    start: int
    size: int


@dataclass
class DimensionIds:
    """All ids of one forward pass, and what ties them.

    Attributes:
        owners: In order of their ids.
        marks: DimensionIds by what was noticed of them.
        count: How many ids there are, `RIGID` included.
        pinned: DimensionIds that were tied to `RIGID`, or all to each other, since this was last emptied.
    """

    owners: list[Owner] = field(default_factory=list)
    marks: dict[str, list[Tensor]] = field(default_factory=dict)
    count: int = 1
    pinned: list[Tensor] = field(default_factory=list)
    _ties: list[Tensor] = field(default_factory=list)

    def of_tensor(self, name: str, tensor: Tensor) -> Maps:
        """Make ids for each dimension of a parameter or buffer that has more than one index."""
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
        """Say that no id of these maps can be removed."""
        for ids in maps:
            self.tie(ids, torch.tensor(RIGID))

    def mark(self, what: str, *maps: Tensor) -> None:
        """Note something of the ids in these maps."""
        self.marks.setdefault(what, []).extend(ids.flatten() for ids in maps)

    def marked(self, what: str) -> np.ndarray:
        """Return, for every id, whether it was marked."""
        found = np.zeros(self.count, dtype=bool)
        for ids in self.marks.get(what, ()):
            found[ids.numpy()] = True
        return found

    def fixed_along(self, ids: Tensor, *dims: int) -> Maps:
        """Forbid removing single indices along `dims`; what the map says about its other dimensions stays.

        Returns:
            The map without `dims`, or nothing if it varied in no other dimension.
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
        """Number the sets of ids that are tied to each other: one number per id, 0 for what is rigid.

        Args:
            pinned: Whether what is tied to `RIGID` counts as tied to each other; else only `RIGID` itself is rigid.
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
    """Turn the ids of all elements into a map: size 1 along every dimension in which they do not vary.

    What was expanded (stride 0) does not vary, and most of the rest shows in two elements that it does.

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
    """Prepend dimensions of size 1, as broadcasting does."""
    return ids.reshape((1,) * (ndim - ids.ndim) + tuple(ids.shape))


@dataclass(frozen=True)
class Operand:
    """What takes part in an element-wise operation.

    Attributes:
        maps: With as many dimensions as the result.
        solid: Dimensions that have a size of their own, and no map to say that it may change.
    """

    maps: Maps
    solid: tuple[int, ...] = ()


def unify(ids: DimensionIds, operands: Sequence[Operand]) -> Maps:
    """Tie what meets element by element, and return the maps of the result."""
    maps: list[Tensor] = []
    for operand in operands:
        fixed = {dim for other in operands if other is not operand for dim in other.solid}
        maps += [left for own in operand.maps for left in ids.fixed_along(own, *fixed)]
    result: list[Tensor] = []
    for new in sorted(maps, key=lambda m: -len(varying(m))):
        result = _join(ids, result, new)
    return tuple(result)


def _join(ids: DimensionIds, maps: list[Tensor], new: Tensor) -> list[Tensor]:
    """Add a map to those of a tensor; it varies in no more dimensions than each of them."""
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
