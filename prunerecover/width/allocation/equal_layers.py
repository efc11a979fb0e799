"""Equal layers: groups of one kind and size keep one number of units, as a config of transformers can say.

Layers that are alike give their next unit together. So a budget is met by less than one unit of each of them, which is
coarser than a unit of one, but what is left is a standard model.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from prunerecover.plan.budget import Budget
from prunerecover.plan.groups import Group
from prunerecover.width.allocation.cost_model import CostModel
from prunerecover.width.allocation.greedy_fill import (
    RemovalTarget,
    Removed,
    allowed,
    check_met,
    max_removable,
    saved_by,
    units_taken_last,
    units_taken_next,
)

Counts = dict[str, int]  # units that go, by group name


@dataclass(frozen=True)
class Layers:
    """Groups that are alike, and how they give units.

    Attributes:
        groups: Of one kind and size, with the same rules.
        weight: How many units each gives in proportion to those of other layers.
        end: The most that each may lose.
    """

    groups: tuple[Group, ...]
    weight: float
    end: int

    @property
    def names(self) -> tuple[str, ...]:
        """Of the groups."""
        return tuple(group.name for group in self.groups)

    def priority(self, gone: int, units: int) -> float:
        """How far these layers are on their way, in the middle of the units that would go next; the least goes."""
        return (gone + units / 2) / max(self.weight, 1e-9)


def alike(groups: Iterable[Group]) -> list[tuple[Group, ...]]:
    """Return the groups of one kind, size and rules together, in order of the first of each."""
    found: dict[tuple[object, ...], list[Group]] = {}
    for group in groups:
        rules = group.kind, group.size, group.at_least, group.multiple, group.strata
        found.setdefault(rules, []).append(group)
    return [tuple(members) for members in found.values()]


def equal_counts(layers: Sequence[Layers], costs: CostModel, target: RemovalTarget, *, beyond: bool = True) -> Counts:
    """Return how many units of each group go, so that the target is just met with as many from all that are alike.

    Args:
        layers: Of the target's groups.
        costs: Of these groups.
        target: What has to go.
        beyond: Whether more may go, by less than the smallest step; False: at most the target.

    Raises:
        ValueError: If all that may go is not enough.
    """
    gone = [0] * len(layers)

    def saved(changed: int, units: int) -> int:
        counts = {n: gone[i] + (units if i == changed else 0) for i, each in enumerate(layers) for n in each.names}
        return saved_by(costs, target, counts)

    def next_steps() -> dict[int, int]:
        found = {i: units_taken_next(each.groups[0], gone[i]) for i, each in enumerate(layers)}
        return {i: units for i, units in found.items() if gone[i] + units <= layers[i].end}

    def last_steps() -> dict[int, int]:
        found = {i: units_taken_last(each.groups[0], gone[i]) for i, each in enumerate(layers)}
        return {i: units for i, units in found.items() if units}

    total = 0
    while total < target.amount and (following := next_steps()):
        chosen = min(following, key=lambda i: layers[i].priority(gone[i], following[i]))
        after = saved(chosen, following[chosen])
        if after > target.amount and not beyond:
            break
        gone[chosen] += following[chosen]
        total = after
    if beyond:
        check_met(target, total, costs)
    while last := last_steps():
        left = {i: saved(i, -units) for i, units in last.items()}
        spare = [i for i in last if target.amount <= left[i] < total]
        if not spare:
            break
        back = max(spare, key=lambda i: layers[i].priority(gone[i] - last[i], last[i]))
        gone[back] -= last[back]
        total = left[back]
    return {name: gone[i] for i, each in enumerate(layers) for name in each.names}


def even_layers(groups: Sequence[Group], most: float) -> list[Layers]:
    """Return layers that give in proportion to their size."""
    return [Layers(members, members[0].size, max_removable(members[0], most)) for members in alike(groups)]


def equalised(
    groups: Sequence[Group], removed: Removed, costs: CostModel, budget: Budget | None, most: float = 0.9
) -> Counts:
    """Return how many units go with one number for all layers that are alike: about the mean of what they gave.

    Args:
        groups: What was allocated.
        removed: Units that go, by group name.
        costs: Of these groups.
        budget: That is met again; None: there was none.
        most: Share of a group that may go; more goes where more did.

    Raises:
        ValueError: If the groups cannot meet the budget so.
    """
    target = None if budget is None else RemovalTarget.of(budget, groups, costs)
    layers = [_as_given(members, removed, most) for members in alike(groups if target is None else target.groups)]
    if target is None:
        return {name: allowed(each.groups[0], round(each.weight)) for each in layers for name in each.names}
    return equal_counts(layers, costs, target)


def warn_of_more(target: RemovalTarget, removed: Removed) -> None:
    """Warn if more units go than were asked for, because layers that are alike give theirs together.

    Args:
        target: In units.
        removed: Units that go, by group name.
    """
    gone = sum(len(removed[group.name]) for group in target.groups)
    if gone > target.amount:
        warnings.warn(
            f"{gone} of {target.full} {target.what}s go ({gone / target.full:.1%}), not the {target.amount:.0f} "
            f"({target.amount / target.full:.1%}) that were asked for: units go together, as those of layers that are "
            "alike do with equal_layers=True or an even allocation. Ask for a number that they can give.",
            stacklevel=3,
        )


def _as_given(members: tuple[Group, ...], removed: Mapping[str, Sequence[int]] | Removed, most: float) -> Layers:
    given = [len(removed[group.name]) for group in members]
    return Layers(members, sum(given) / len(given), max(max_removable(members[0], most), *given))
