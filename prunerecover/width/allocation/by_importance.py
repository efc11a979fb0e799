"""Allocations by importance: per cost, globally, or the same share of every group.

Scores are importances of units, such as `gate_taylor` or `magnitude`. The best measured rule is `per_cost` on
`gate_taylor`; the other rules are baselines.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from prunerecover.importance.measuring.unit_slices import Scores
from prunerecover.plan.budget import Budget
from prunerecover.plan.groups import Group
from prunerecover.width.allocation.cost_model import Cost, CostModel
from prunerecover.width.allocation.equal_layers import alike
from prunerecover.width.allocation.greedy_fill import NEVER, PriorityKey, RemovalTarget, Removed, fill, max_removable


def per_cost(
    groups: Sequence[Group], scores: Scores, costs: CostModel, budget: Budget, *, damping: float = 0.0
) -> Removed:
    """Remove the units of least importance per saved cost: the next unit has the lowest score / share saved.

    The saving of a unit is computed anew as its neighbours shrink. For a budget of parameters, the share saved is the
    mean of the shares of MACs and of parameters; for a budget in units, units count alike.

    Args:
        groups: Groups to choose from.
        scores: Scores `(size,)` by group name, not negative and comparable between groups; low goes first.
        costs: Cost model of the groups.
        budget: Share of MACs or of parameters, or a number or ratio of units of one kind, in all groups together.
        damping: Power of the remaining share of the group in the divisor of scores: fewer remaining units are dearer.
            `plan_width` tries 1 and 0 when weighing kinds, and takes 0 elsewhere.

    Returns:
        Indices of the removed units, by group name. The budget is met, with less than one unit to spare.

    Raises:
        ValueError: If the groups cannot meet the budget, scores do not fit the groups or are negative, or an argument
            is out of range.
    """
    target = RemovalTarget.of(budget, groups, costs)
    if not 0 <= damping < math.inf:
        raise ValueError(f"Expected damping to be finite and at least 0, but got {damping}.")
    ranked, sizes = _ranked(groups, scores), {group.name: group.size for group in groups}

    def key(name: str, gone: int, units: int, saving: Cost) -> float:
        share = units if target.in_units else share_saved(saving, costs.full, target.what)
        left = 1 - gone / sizes[name]
        return sum(ranked[name][gone : gone + units]) / (share * math.pow(left, damping)) if share else NEVER

    return _allocate(groups, scores, costs, target, key)


def global_ranking(groups: Sequence[Group], scores: Scores, costs: CostModel, budget: Budget) -> Removed:
    """Remove the units of lowest score in any group, regardless of their cost.

    Args:
        groups: Groups to choose from.
        scores: Scores `(size,)` by group name, not negative and comparable between groups; low goes first.
        costs: Cost model of the groups.
        budget: Budget; see `per_cost`.
    """
    ranked = _ranked(groups, scores)

    def key(name: str, gone: int, units: int, saving: Cost) -> float:
        return sum(ranked[name][gone : gone + units]) / units

    return _allocate(groups, scores, costs, RemovalTarget.of(budget, groups, costs), key)


def uniform(groups: Sequence[Group], scores: Scores, costs: CostModel, budget: Budget, *, most: float = 0.9) -> Removed:
    """Remove the same share of every group, to half a unit; within a group the lowest score goes first.

    Groups of equal kind and size keep equal numbers. A budget of cost is met with less than one unit of each group to
    spare, or less than one step of groups in multiples. A budget in units beyond equal numbers takes the missing units
    singly, from the first groups in order.

    Args:
        groups: Groups to choose from.
        scores: Scores `(size,)` by group name; low goes first within a group.
        costs: Cost model of the groups.
        budget: Budget; see `per_cost`.
        most: Largest removable share of a group.
    """
    _ranked(groups, scores)
    target = RemovalTarget.of(budget, groups, costs)
    end = {group.name: max_removable(group, most) for group in target.groups}
    sizes = {group.name: group.size for group in groups}

    def key(name: str, gone: int, units: int, saving: Cost) -> float:
        return (gone + units / 2) / sizes[name]

    counts = fill(costs, target, key, end, layers=alike(target.groups), beyond=not target.in_units)
    if target.in_units:
        counts = fill(costs, target, key, end, start=counts)
    return lowest(groups, scores, counts)


def share_saved(saving: Cost, full: Cost, what: str) -> float:
    """Return the saved share of the model's MACs; for a budget of parameters, the mean with their share.

    Args:
        saving: Saved MACs and parameters.
        full: MACs and parameters of the dense model.
        what: Cost of the budget, "macs" or "params".

    >>> share_saved(Cost(10, 30), Cost(100, 100), "params")
    0.2
    """
    macs = saving.macs / full.macs if full.macs else 0.0
    return macs if what == "macs" else (macs + saving.params / full.params) / 2


def lowest(groups: Sequence[Group], scores: Scores, counts: Mapping[str, int]) -> Removed:
    """Return the units of lowest score, a given number per group, 0 for unnamed groups; ties go by index.

    Args:
        groups: Groups to choose from.
        scores: Scores `(size,)` by group name.
        counts: Number of removed units by group name.
    """
    return {g.name: removal_order(g, scores[g.name])[: counts.get(g.name, 0)].sort().values for g in groups}


def removal_order(group: Group, scores: Tensor) -> Tensor:
    """Return the numbers of all units, lowest score first; strata take turns, to give up equally many units.

    >>> removal_order(Group("moe", "expert", 4, (), multiple=2, strata=2), torch.tensor([0.0, 1.0, 3.0, 2.0]))
    tensor([0, 3, 1, 2])
    """
    within = scores.view(group.strata, -1).argsort(dim=1, stable=True)
    starts = torch.arange(0, group.size, group.size // group.strata)
    return (within + starts[:, None]).T.flatten()


def removal_positions(groups: Sequence[Group], scores: Scores) -> Scores:
    """Return, by group, each unit's position in the order of removal, a score without turns of strata.

    >>> moe = Group("moe", "expert", 4, (), multiple=2, strata=2)
    >>> removal_positions([moe], {"moe": torch.tensor([0.0, 1.0, 3.0, 2.0])})
    {'moe': tensor([0, 2, 3, 1])}
    """
    return {group.name: removal_order(group, scores[group.name]).argsort() for group in groups}


def _allocate(
    groups: Sequence[Group], scores: Scores, costs: CostModel, target: RemovalTarget, key: PriorityKey
) -> Removed:
    counts = fill(costs, target, key, end={group.name: max_removable(group) for group in target.groups})
    return lowest(groups, scores, counts)


def _ranked(groups: Sequence[Group], scores: Scores) -> dict[str, list[float]]:
    """Return checked scores in the order of removal."""
    for group in groups:
        check_scores(group, scores)
        if scores[group.name].min() < 0:
            raise ValueError(
                f"Expected scores that are not negative, but '{group.name}' has {scores[group.name].min():.3g}. "
                "Use magnitudes, squares or absolute values."
            )
    scores = {group.name: scores[group.name].double() for group in groups}
    return {g.name: scores[g.name][removal_order(g, scores[g.name])].tolist() for g in groups}


def check_scores(group: Group, scores: Scores) -> None:
    """Raise ValueError unless a group has one finite score per unit."""
    values = scores.get(group.name)
    if values is None or values.shape != (group.size,) or not torch.isfinite(values).all():
        found = "none" if values is None else f"shape {tuple(values.shape)}, finite: {bool(values.isfinite().all())}"
        raise ValueError(
            f"Expected one finite score per unit of '{group.name}', shape ({group.size},), but got {found}. "
            "Score the groups that are allocated."
        )
