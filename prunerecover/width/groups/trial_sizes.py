"""Sizes of groups in trials: different numbers, lest sizes fit each other by accident."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from prunerecover.plan.groups import Group

LEAST_LOST, MOST_LOST = 2, 4  # units of a group that shares no tensor, in the first trial


def units_left(groups: Sequence[Group]) -> dict[Group, int]:
    """How many units each group keeps: neighbours lose other numbers, and those that share a tensor ever fewer.

    A tensor that code cuts in halves may come out right by accident: with the first half larger by one, or equal. So
    each group loses two at least, and a later part of the same tensor less than an earlier one. Two heads stay: of a
    single one it could not be seen that it is one.
    """
    return {group: max(group.size - lost, _least(group)) for group, lost in _losses(groups).items()}


def trial_sizes(groups: Sequence[Group]) -> list[dict[Group, int]]:
    """Return how many units each group keeps in one trial, or in two if small groups of one size come out alike in it.

    In the second they lose none, one and so on, in turn; a single head is not left, for it would fit by broadcasting.
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
    """Return how many units each group keeps in three more trials, which show what fitted the first by accident.

    In one each loses as many as alone, in the others of two groups now the one loses more, now the other.

    Args:
        groups: That can be narrowed in company, perhaps because another loses as many, or by that number only.
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
    """Return how many units each group loses if it has as many to give."""
    losses = {}
    for i, (group, later) in enumerate(zip(groups, later_in_tensor(groups), strict=True)):
        losses[group] = LEAST_LOST + (i % (MOST_LOST - LEAST_LOST + 1) if later is None else later)
    return losses


def linked_sizes(linked: Sequence[Sequence[Group]]) -> list[dict[Group, int]]:
    """Return how many units linked groups keep in two trials: those of one tuple lose as many, others other numbers."""
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
    """Return sizes of which each stratum of a group has as many, the next lower ones; one unit of each stays.

    >>> list(in_whole_strata({Group("conv", "channel", 8, (), multiple=2, strata=2): 5}).values())
    [4]
    """
    return {group: max(size - size % group.strata, group.strata) for group, size in sizes.items()}


def later_in_tensor(groups: Sequence[Group]) -> list[int | None]:
    """Return, for each group, how many later ones are made by the same tensor; None: no other is."""
    places = [[(part.tensor, part.dim) for part in group.slices if part.makes] for group in groups]
    total = Counter(place for own in places for place in own)
    seen: Counter[tuple[str, int]] = Counter()
    later: list[int | None] = []
    for own in places:
        seen.update(own)
        sharing = max(total[place] for place in own) > 1
        later.append(max(total[place] - seen[place] for place in own) if sharing else None)
    return later
