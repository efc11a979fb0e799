"""Allocation by Tolerance of Difference: one tolerance for all groups (arXiv 2508.02291).

By the book the tolerance is given. With a budget it is searched, and two things make every budget reachable:

- Even tolerance 0 removes everything up to the first unit that both importances name, which can be half a model. A
  lighter budget takes a share of those depths, the same for every group.
- Depths jump: one group's depth may double from one tolerance to the next. Between the two, every group goes the same
  share of its way. Rounding is to half a unit, then unit by unit in the order of the groups.

A depth is at most n / (2 - tolerance), so heavy budgets need a tolerance near 1, where the importances no longer say
anything: prune in several steps then, each on new scores of the units that are left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prunerecover.importance.measuring.unit_slices import Scores
from prunerecover.plan.budget import Budget
from prunerecover.plan.groups import Group
from prunerecover.width.allocation.by_importance import check_scores, lowest
from prunerecover.width.allocation.cost_model import Cost, CostModel
from prunerecover.width.allocation.greedy_fill import RemovalTarget, Removed, allowed, fill, max_removable, saved_by
from prunerecover.width.allocation.removal_order import removal_positions
from prunerecover.width.allocation.tolerance import curves, depths

PRECISION = 1e-8  # two values of ToD with up to 10,000 units differ by more
MOST = 0.99  # of a group


@dataclass(frozen=True)
class ToleranceAllocation:
    """What goes, and how it was found.

    Attributes:
        removed: Indices of the units that go, by group name.
        tolerance: The smallest tolerance whose depths meet the budget, or the one that was asked for.
        share: How far the groups go from the depths below to those of this tolerance, in units over all; 1 by the book.
    """

    removed: Removed
    tolerance: float
    share: float


def tolerance_allocation(
    groups: Sequence[Group],
    low: Scores,
    high: Scores,
    *,
    tolerance: float | None = None,
    budget: Budget | None = None,
    costs: CostModel | None = None,
    most: float = MOST,
) -> ToleranceAllocation:
    """Remove each group's lowest units by `low`, as deep as ToD against `high` allows.

    Args:
        groups: To choose from.
        low: `(size,)` by group name, such as `u_score`; low goes first.
        high: `(size,)` by group name, such as `r_score`; high is protected.
        tolerance: Between 0 and 1; or give a budget.
        budget: A share of MACs or of parameters, or units of one kind; needs `costs`.
        costs: Of these groups.
        most: Share of a group that may go.

    Raises:
        ValueError: If the groups cannot meet the budget, scores do not fit the groups, or an argument is out of range.
    """
    if (tolerance is None) == (budget is None) or (budget is not None and costs is None):
        raise ValueError("Expected either a tolerance, or a budget with costs. Use tolerance=0.1 to go by the book.")
    for group in groups:
        check_scores(group, low)
        check_scores(group, high)
    low = removal_positions(groups, low)
    if budget is not None and costs is not None:
        target = RemovalTarget.of(budget, groups, costs)
        counts, tolerance, share = _for_budget(Solver(target.groups, low, high, most), costs, target)
        return ToleranceAllocation(lowest(groups, low, counts), tolerance, share)
    assert tolerance is not None, "checked above"
    found = Solver(groups, low, high, most).depths(tolerance)
    return ToleranceAllocation(lowest(groups, low, found), tolerance, 1.0)


def _for_budget(solver: Solver, costs: CostModel, target: RemovalTarget) -> tuple[dict[str, int], float, float]:
    """Return how many units of each of the target's groups go, the tolerance, and how far they go to its depths."""
    low: dict[str, int] = dict.fromkeys(solver.rooms, 0)
    high, tolerance = solver.depths(0.0), 0.0
    if saved_by(costs, target, high) < target.amount:
        low, high, tolerance = _bracket(solver, costs, target)
    start = {name: min(count, high[name]) for name, count in low.items()}

    def key(name: str, gone: int, units: int, saving: Cost) -> float:
        return (gone - start[name] + units / 2) / max(high[name] - start[name], 1)

    counts = fill(costs, target, key, end=high, start=start)
    way = sum(high.values()) - sum(start.values())
    share = max(0.0, (sum(counts.values()) - sum(start.values())) / way) if way else 1.0
    return counts, tolerance, share


def _bracket(solver: Solver, costs: CostModel, target: RemovalTarget) -> tuple[dict[str, int], dict[str, int], float]:
    """Bisect for two neighbouring tolerances around the budget: depths below, depths above, and the upper one.

    If all depths together are not enough, `fill` says so.
    """
    low, high = 0.0, 1.0
    below, above = solver.depths(low), solver.depths(high)
    while high - low > PRECISION:
        middle = (low + high) / 2
        found = solver.depths(middle)
        if saved_by(costs, target, found) < target.amount:
            low, below = middle, found
        else:
            high, above = middle, found
    return below, above, high


class Solver:
    """Depths for any tolerance, within what each group may lose; arguments as of `tolerance_allocation`."""

    def __init__(self, groups: Sequence[Group], low: Scores, high: Scores, most: float = MOST) -> None:
        self.groups = groups
        self.rooms = {group.name: max_removable(group, most) for group in groups}
        self.curves = curves({group.name: low[group.name] for group in groups}, high)

    def depths(self, tolerance: float) -> dict[str, int]:
        """Return how many units of each group go."""
        found = depths(self.curves, tolerance)
        return {group.name: allowed(group, min(found[group.name], self.rooms[group.name])) for group in self.groups}
