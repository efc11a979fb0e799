"""Equal layers: groups of equal kind and size keep equal numbers of units, as in a config of transformers.

Alike layers give the next unit together. A budget is met with less than one unit per layer to spare, coarser than for
single units, but the narrowed model is a standard model.
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

Counts = dict[str, int]  # removed units by group name


@dataclass(frozen=True)
class Layers:
    """Alike groups, and the order of their units.

    Attributes:
        groups: Groups of equal kind and size, with equal rules.
        weight: Number of units per group in proportion to other layers.
        end: Largest number of removed units per group.
    """

    groups: tuple[Group, ...]
    weight: float
    end: int

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the groups."""
        return tuple(group.name for group in self.groups)

    def priority(self, gone: int, units: int) -> float:
        """Return the progress of the layers in the middle of the next units to go; the lowest progress goes first."""
        return (gone + units / 2) / max(self.weight, 1e-9)


def alike(groups: Iterable[Group]) -> list[tuple[Group, ...]]:
    """Return the groups of equal kind, size and rules together, in the order of the first of each."""
    found: dict[tuple[object, ...], list[Group]] = {}
    for group in groups:
        rules = group.kind, group.size, group.at_least, group.multiple, group.strata
        found.setdefault(rules, []).append(group)
    return [tuple(members) for members in found.values()]


def equal_counts(layers: Sequence[Layers], costs: CostModel, target: RemovalTarget, *, beyond: bool = True) -> Counts:
    """Return the number of removed units per group that just meets the target, equal for alike groups.

    Args:
        layers: Layers of the target's groups.
        costs: Cost model of the groups.
        target: Amount to remove.
        beyond: Whether to exceed the target, by less than the smallest step; False: at most the target.

    Raises:
        ValueError: If all removable units are not enough.
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
    """Return layers with units in proportion to their size."""
    return [Layers(members, members[0].size, max_removable(members[0], most)) for members in alike(groups)]


def equalised(groups: Sequence[Group], removed: Removed, costs: CostModel, budget: Budget | None) -> Counts:
    """Return the number of removed units, equal for alike layers: about the mean of the given numbers.

    Args:
        groups: Allocated groups.
        removed: Indices of the removed units, by group name.
        costs: Cost model of the groups.
        budget: Budget to meet again; None without a budget.

    Raises:
        ValueError: If equal layers cannot meet the budget.
    """
    target = None if budget is None else RemovalTarget.of(budget, groups, costs)
    layers = [_as_given(members, removed) for members in alike(groups if target is None else target.groups)]
    if target is None:
        return {name: allowed(each.groups[0], round(each.weight)) for each in layers for name in each.names}
    return equal_counts(layers, costs, target)


def warn_of_more(target: RemovalTarget, removed: Removed) -> None:
    """Warn if more units go than the budget, because alike layers give units together.

    Args:
        target: Amount to remove, in units.
        removed: Indices of the removed units, by group name.
    """
    gone = sum(len(removed[group.name]) for group in target.groups)
    if gone > target.amount:
        warnings.warn(
            f"{gone} of {target.full} {target.what}s go ({gone / target.full:.1%}), not the {target.amount:.0f} "
            f"({target.amount / target.full:.1%}) requested: with equal_layers=True or an even allocation, "
            "units go together in equal layers. Ask for a possible number.",
            stacklevel=3,
        )


def _as_given(members: tuple[Group, ...], removed: Mapping[str, Sequence[int]] | Removed) -> Layers:
    given = [len(removed[group.name]) for group in members]
    return Layers(members, sum(given) / len(given), max(max_removable(members[0]), *given))
