"""Equal parts of tensors: `x.chunk(2, 1)` cuts a tensor by its size: all parts must lose equally many indices.

Otherwise the cut moves, and a unit gets into another part with another use. The number of indices of each unit in each
part decides the constraint: none, if every unit has equally many in all parts (queries, keys and values); stretches
within a group (`Group.strata`); or *linked* groups. Parts of several groups with further entries, and cuts into parts
of different lengths, are left to the dry run, with a check for units in changed parts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from prunerecover.graph.dimensions.ties import Split, Ties
from prunerecover.width.groups.alike import AlikeUnits

TensorDim = tuple[str, int]
Counts = dict[int, np.ndarray]  # by number of the split: indices of each unit in each part, `(parts, units)`


def balance(
    groups: Sequence[AlikeUnits], splits: Sequence[Split]
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Return the constraints that keep the parts of all splits equal.

    These are the number of stretches of units per group, with equally many kept units each, and the positions of groups
    with equal numbers of lost units.

    Args:
        groups: All narrowable groups.
        splits: Splits of a forward pass.
    """
    counts = _counts(groups, splits)
    strata = [_strata(own, group.size) for own, group in zip(counts, groups, strict=True)]
    leaning = [i for i, number in enumerate(strata) if number is None]
    linked = tuple(one for one in _touching(leaning, counts) if _even_together([counts[i] for i in one]))
    return tuple(number or 1 for number in strata), linked


def units_that_moved(
    dense: Ties, component: np.ndarray, narrowed: Ties, stays: Mapping[TensorDim, np.ndarray]
) -> np.ndarray:
    """List units in a split of a narrowed network with other parts than in the dense network.

    Empty parts do not count: code that cuts out every head finds fewer heads.

    Args:
        dense: Ties of the dense network.
        component: Component of each id of the dense network; see `DimensionIds.components`.
        narrowed: Ties of the narrowed network.
        stays: Mask of the remaining indices, by narrowed dimension.

    Returns:
        Components of the units; units outside all splits of the dense network are left out.
    """
    kept = np.ones(dense.ids.count, dtype=bool)
    of_dense: dict[TensorDim, np.ndarray] = {}
    for owner in dense.ids.owners:
        place, ids = (owner.tensor, owner.dim), np.arange(owner.start, owner.start + owner.size)
        kept[ids] = stays.get(place, True)
        of_dense[place] = component[ids[kept[ids]]]
    new = np.zeros(narrowed.ids.count, dtype=component.dtype)
    for owner in narrowed.ids.owners:
        new[owner.start : owner.start + owner.size] = of_dense[owner.tensor, owner.dim]
    before = [[component[ids[kept[ids]]] for ids in _arrays(split)] for split in dense.splits]
    known = {_key(parts) for parts in before}
    seen = np.unique(np.concatenate([[0], *(part for parts in before for part in parts)]))
    after = [[new[ids] for ids in _arrays(split)] for split in narrowed.splits]
    moved = [part for parts in after if _key(parts) not in known for part in parts]
    return np.intersect1d(np.concatenate([[0], *moved]), seen[seen > 0])


def _counts(groups: Sequence[AlikeUnits], splits: Sequence[Split]) -> list[Counts]:
    """Count the indices of units in the parts of splits with uneven cuts through groups."""
    position = {group.number: i for i, group in enumerate(groups)}
    counts: list[Counts] = [{} for _ in groups]
    if not groups:
        return counts
    among = groups[0].among
    for number, split in enumerate(splits):
        parts = _arrays(split)
        for own in np.unique(among.group[np.concatenate(parts)]) if split.equal else ():
            if own in position:
                group = groups[position[own]]
                units = (among.unit[part[among.group[part] == own]] for part in parts)
                table = np.stack([np.bincount(one, minlength=group.size) for one in units])
                if (table != table[0]).any():
                    counts[position[own]][number] = table
    return counts


def _strata(counts: Counts, size: int) -> int | None:
    """Return the lowest number of equal stretches that balance a group alone; None if there is no number."""
    if not counts:
        return 1
    divisors = (number for number in range(2, size // 2 + 1) if size % number == 0)
    return next((n for n in divisors if all(_even(table, n) for table in counts.values())), None)


def _even(table: np.ndarray, strata: int) -> bool:
    """Whether parts lose equally many indices if all strata lose equally many units."""
    stretches = table.reshape(len(table), strata, -1)
    lost = stretches[:, :, 0].sum(1)
    return bool((stretches == stretches[:, :, :1]).all() and (lost == lost[0]).all())


def _touching(positions: Sequence[int], counts: Sequence[Counts]) -> list[tuple[int, ...]]:
    """Join groups with shared splits, directly or through further groups."""
    sets: list[tuple[set[int], set[int]]] = []
    for i in positions:
        groups, splits = {i}, set(counts[i])
        for other in [other for other in sets if other[1] & splits]:
            sets.remove(other)
            groups, splits = groups | other[0], splits | other[1]
        sets.append((groups, splits))
    return sorted(tuple(sorted(groups)) for groups, _ in sets)


def _even_together(counts: Sequence[Counts]) -> bool:
    """Whether parts lose equally many indices if all groups lose equally many units."""
    tables: dict[int, list[np.ndarray]] = defaultdict(list)
    for own in counts:
        for split, table in own.items():
            tables[split].append(table)
    flat = all((table == table[:, :1]).all() for found in tables.values() for table in found)
    return flat and all(np.ptp(np.sum([table[:, 0] for table in found], axis=0)) == 0 for found in tables.values())


def _arrays(split: Split) -> list[np.ndarray]:
    return [part.numpy() for part in split.parts]


def _key(parts: Sequence[np.ndarray]) -> tuple[bytes, ...]:
    return tuple(part.tobytes() for part in parts if len(part))
