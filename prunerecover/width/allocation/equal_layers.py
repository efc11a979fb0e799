"""Equal layers: groups of equal kind and size keep equal numbers of units, as in a config of transformers.

Alike layers give the next unit together. A budget is met with less than one unit per layer to spare, coarser than for
single units, but the narrowed model is a standard model.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence

from prunerecover.plan.budget import Budget
from prunerecover.plan.groups import Group
from prunerecover.width.allocation.cost_model import Cost, CostModel
from prunerecover.width.allocation.greedy_fill import Layers, RemovalTarget, Removed, allowed, fill, max_removable


def alike(groups: Iterable[Group]) -> list[Layers]:
    """Return the groups of equal kind, size and rules together, in the order of the first of each."""
    found: dict[tuple[object, ...], list[Group]] = {}
    for group in groups:
        rules = group.kind, group.size, group.at_least, group.multiple, group.strata
        found.setdefault(rules, []).append(group)
    return [tuple(members) for members in found.values()]


def equalised(groups: Sequence[Group], removed: Removed, costs: CostModel, budget: Budget | None) -> dict[str, int]:
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
    layers = alike(groups if target is None else target.groups)
    given = {members[0].name: [len(removed[group.name]) for group in members] for members in layers}
    means = {name: sum(counts) / len(counts) for name, counts in given.items()}
    if target is None:
        return {g.name: allowed(own[0], round(means[own[0].name])) for own in layers for g in own}
    end = {own[0].name: max(max_removable(own[0]), *given[own[0].name]) for own in layers}

    def key(name: str, gone: int, units: int, saving: Cost) -> float:
        return (gone + units / 2) / max(means[name], 1e-9)

    return fill(costs, target, key, end, layers=layers)


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
