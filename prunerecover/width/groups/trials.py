"""Trials of groups: sizes that differ, lest sizes fit by accident, and copies of a model in these sizes.

In the copies the last units of groups, or of strata, are removed, at zero, or reweighted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from prunerecover.model.copies import copy_with, share_copy
from prunerecover.model.narrow.when_used import when_used
from prunerecover.plan.groups import Group
from prunerecover.surgery.journal import Journal
from prunerecover.surgery.narrowing import narrow
from prunerecover.width.groups.narrow_edits import edits_without

TensorDim = tuple[str, int]
Stays = Mapping[TensorDim, np.ndarray]
LEAST_LOST, MOST_LOST = 2, 4  # lost units of a group without shared tensors, in the first trial


def units_left(groups: Sequence[Group]) -> dict[Group, int]:
    """Return the number of kept units per group: neighbours lose different numbers, parts of a tensor ever fewer.

    A tensor cut in halves may come out right by accident: with the first half larger by one, or equal. Each group
    therefore loses at least two units, and a later part of a tensor loses fewer than an earlier part. Two heads stay: a
    single head could not be recognised as a head.
    """
    return {group: max(group.size - lost, _least(group)) for group, lost in _losses(groups).items()}


def trial_sizes(groups: Sequence[Group]) -> list[dict[Group, int]]:
    """Return the kept units of each group in a trial, or in two if small groups of equal size also end equal.

    In the second trial the small groups lose none, one and so on, in turn; a single head is never left, as a single
    head would fit by broadcasting.
    """
    first = units_left(groups)
    small = [g for g, lost in _losses(groups).items() if g.size - max(lost, MOST_LOST) < _least(g)]
    if all(count == 1 for count in Counter((g.kind, g.size, first[g]) for g in small).values()):
        return [first]
    second, ranks = dict(first), Counter[tuple[str, int]]()
    for group in small:
        second[group] = group.size - ranks[group.kind, group.size] % (group.size - _least(group) + 1)
        ranks[group.kind, group.size] += 1
    return [first, second]


def other_sizes(groups: Sequence[Group]) -> list[dict[Group, int]]:
    """Return the kept units of each group in three further trials, which reveal accidental fits of the first.

    In the first each group loses as many units as alone; in the second and third, of two groups now the first loses
    more, now the second.

    Args:
        groups: Groups narrowable in company, possibly because of equal losses, or by a certain number only.
    """

    def losing(losses: Sequence[int]) -> dict[Group, int]:
        return {g: max(g.size - LEAST_LOST - lost, _least(g)) for g, lost in zip(groups, losses, strict=True)}

    most = [max(group.size // 2, 1) for group in groups]
    rising = [i % count for i, count in enumerate(most)]
    falling = [count - 1 - i % count for i, count in enumerate(most)]
    return [{group: units_left((group,))[group] for group in groups}, losing(rising), losing(falling)]


def _least(group: Group) -> int:
    return 2 if group.kind == "head" and group.size > 2 else 1


def _losses(groups: Sequence[Group]) -> dict[Group, int]:
    """Return the number of lost units of each group, before the group's minimum applies."""
    losses = {}
    for i, (group, later) in enumerate(zip(groups, later_in_tensor(groups), strict=True)):
        losses[group] = LEAST_LOST + (i % (MOST_LOST - LEAST_LOST + 1) if later is None else later)
    return losses


def linked_sizes(linked: Sequence[Sequence[Group]]) -> list[dict[Group, int]]:
    """Return the kept units of linked groups in two trials: equal losses within a tuple, different among tuples."""
    trials: list[dict[Group, int]] = []
    for later in (0, 1):
        losses = [LEAST_LOST + (i + later) % (MOST_LOST - LEAST_LOST + 1) for i in range(len(linked))]
        room = [min(group.size - _least(group) for group in together) for together in linked]
        trials.append(
            {
                group: group.size - min(lost, most)
                for together, lost, most in zip(linked, losses, room, strict=True)
                for group in together
            }
        )
    return trials


def in_whole_strata(sizes: Mapping[Group, int]) -> dict[Group, int]:
    """Return the next lower sizes with equally many units in each stratum; at least one unit of each stays.

    >>> list(in_whole_strata({Group("conv", "channel", 8, (), multiple=2, strata=2): 5}).values())
    [4]
    """
    return {group: max(size - size % group.strata, group.strata) for group, size in sizes.items()}


def later_in_tensor(groups: Sequence[Group]) -> list[int | None]:
    """Return, for each group, the number of later groups made by the same tensor; None without shared tensors."""
    places = [[(part.tensor, part.dim) for part in group.slices if part.makes] for group in groups]
    total = Counter(place for own in places for place in own)
    seen: Counter[tuple[str, int]] = Counter()
    later: list[int | None] = []
    for own in places:
        seen.update(own)
        sharing = max(total[place] for place in own) > 1
        later.append(max(total[place] - seen[place] for place in own) if sharing else None)
    return later


def units_that_stay(group: Group, count: int) -> np.ndarray:
    """Return the first units of each stratum, `count` in all.

    >>> units_that_stay(Group("conv", "channel", 8, (), multiple=2, strata=2), 6)
    array([0, 1, 2, 4, 5, 6])
    """
    return np.arange(group.size).reshape(group.strata, -1)[:, : count // group.strata].flatten()


def _units_that_go(group: Group, count: int) -> Tensor:
    return torch.from_numpy(np.setdiff1d(np.arange(group.size), units_that_stay(group, count)))


def positions_that_stay(model: nn.Module, kept: Mapping[Group, int]) -> Stays:
    """Return the mask of the remaining indices of each narrowed dimension, if groups keep their first units."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    stays: dict[TensorDim, np.ndarray] = {}
    for group, units in kept.items():
        removed = _units_that_go(group, units)
        for part in group.slices:
            mask = stays.setdefault((part.tensor, part.dim), np.ones(tensors[part.tensor].shape[part.dim], dtype=bool))
            mask[part.indices(removed).numpy()] = False
    return stays


def narrow_copy(model: nn.Module, kept: Mapping[Group, int]) -> nn.Module:
    """Copy a model with fewer units; unchanged tensors are shared, and large ones cut when used.

    Args:
        model: Network, left unchanged.
        kept: Number of kept units of each group.
    """
    twin, journal = share_copy(model), Journal()
    for edit in edits_without((group, _units_that_go(group, units)) for group, units in kept.items()):
        narrow(twin, edit, journal, to_read=True)
    return twin


def masked_copy(model: nn.Module, stays: Stays) -> nn.Module:
    """Copy a model with the same units at zero, in the weights of makers and readers.

    Args:
        model: Network, left unchanged.
        stays: Masks of `positions_that_stay`.
    """

    def zeroed(tensor: Tensor, dim: int, mask: np.ndarray) -> Tensor:
        return tensor.index_fill(dim, torch.from_numpy((~mask).nonzero()[0]).to(tensor.device), 0)

    return _copy_with(model, stays, zeroed)


def reweighted_copies(model: nn.Module, stays: Stays) -> Iterator[nn.Module]:
    """Copy a model with other weights of the same sizes: first zero, then with the opposite sign.

    Args:
        model: Network, left unchanged.
        stays: Masks of `positions_that_stay` for the tensors to change.
    """
    once = {(name, 0): mask for (name, _), mask in stays.items()}  # a tensor may have two dimensions in `stays`
    yield _copy_with(model, once, lambda tensor, *_: torch.zeros_like(tensor))
    yield _copy_with(model, once, lambda tensor, *_: -tensor)


def _copy_with(model: nn.Module, stays: Stays, changed: Callable[[Tensor, int, np.ndarray], Tensor]) -> nn.Module:
    """Copy a model with some tensors changed along their dimensions; a tensor of several names stays shared."""
    tensors: dict[str, Tensor] = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    new = {name: tensors[name].detach() for name, _ in stays}
    for (name, dim), mask in stays.items():
        of_dense = partial(changed, new[name], dim, mask)
        new[name] = when_used(of_dense, new[name].shape, new[name]) if new[name].is_contiguous() else of_dense()
    return copy_with(model, new)
