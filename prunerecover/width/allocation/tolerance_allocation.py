"""Allocation by Tolerance of Difference: a common tolerance for all groups (arXiv 2508.02291).

In the paper the tolerance is given. With a budget the tolerance is searched, and two extensions make every budget
reachable:

- Even tolerance 0 removes all units before the first unit in both sets, possibly half a model. A lighter budget takes a
  share of those depths, the same for every group.
- Depths jump: a group's depth may double from a tolerance to the next. Between the two, every group goes the same share
  of its way. Rounding is to half a unit, then unit by unit in the order of the groups.

A depth is at most n / (2 - tolerance): heavy budgets need a tolerance near 1, where the importances lose their meaning.
In this case prune in several steps, each on new scores of the remaining units.

The evidence answers three questions from the paper's analysis: the protected score of removed units, against the bound
from ranks alone; the loss of protected score at ToD's depths, against uniform depths at the same cost; and the number
of kept units as a function of the tolerance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from prunerecover.importance.measuring.unit_slices import Scores
from prunerecover.plan.budget import Budget
from prunerecover.plan.evidence import ToleranceEvidence, UniformComparison
from prunerecover.plan.groups import Group
from prunerecover.width.allocation.by_importance import check_scores, lowest, removal_positions, uniform
from prunerecover.width.allocation.cost_model import Cost, CostModel
from prunerecover.width.allocation.greedy_fill import RemovalTarget, Removed, allowed, fill, max_removable, saved_by
from prunerecover.width.allocation.tolerance import depth_of, exchange, protected_mass, tolerance_of_difference

PRECISION = 1e-8  # two values of ToD with up to 10,000 units differ by more
MOST = 0.99  # largest removable share of a group
TOLERANCES = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5)  # in the evidence


@dataclass(frozen=True)
class ToleranceAllocation:
    """Removed units, with the tolerance.

    Attributes:
        removed: Indices of the removed units, by group name.
        tolerance: Smallest tolerance with depths that meet the budget, or the given tolerance.
        share: Share of the way from the depths below to the depths of the tolerance, in units over all groups; 1 for a
            given tolerance.
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
) -> ToleranceAllocation:
    """Remove each group's lowest units by `low`, to the depth of ToD against `high`.

    Args:
        groups: Groups to choose from.
        low: Scores `(size,)` by group name, such as `u_score`; low goes first.
        high: Scores `(size,)` by group name, such as `r_score`; high is protected.
        tolerance: Tolerance between 0 and 1; or give a budget.
        budget: Share of MACs or of parameters, or units of one kind; needs `costs`.
        costs: Cost model of the groups.

    Raises:
        ValueError: If the groups cannot meet the budget, or scores do not fit the groups.
    """
    for group in groups:
        check_scores(group, low)
        check_scores(group, high)
    low = removal_positions(groups, low)
    if budget is not None and costs is not None:
        target = RemovalTarget.of(budget, groups, costs)
        counts, tolerance, share = _for_budget(Solver(target.groups, low, high), costs, target)
        return ToleranceAllocation(lowest(groups, low, counts), tolerance, share)
    assert tolerance is not None, "`WidthRule.check_budget` lets nothing else pass"
    found = Solver(groups, low, high).depths(tolerance)
    return ToleranceAllocation(lowest(groups, low, found), tolerance, 1.0)


def _for_budget(solver: Solver, costs: CostModel, target: RemovalTarget) -> tuple[dict[str, int], float, float]:
    """Return the removed units per group of the target, the tolerance, and the share of the way to its depths."""
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
    """Bisect for two neighbouring tolerances around the budget: depths below, depths above, and the upper tolerance.

    If all depths together are not enough, `fill` raises.
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
    """Depths for any tolerance within each group's limits; arguments as of `tolerance_allocation`."""

    def __init__(self, groups: Sequence[Group], low: Scores, high: Scores) -> None:
        self.groups = groups
        self.rooms = {group.name: max_removable(group, MOST) for group in groups}
        self.curves = {g.name: tolerance_of_difference(low[g.name], high[g.name]) for g in groups}

    def depths(self, tolerance: float) -> dict[str, int]:
        """Return the number of removed units per group."""
        return {
            group.name: allowed(group, min(depth_of(self.curves[group.name], tolerance), self.rooms[group.name]))
            for group in self.groups
        }


def tolerance_evidence(
    groups: Sequence[Group], low: Scores, high: Scores, found: ToleranceAllocation, costs: CostModel
) -> dict[str, Any]:
    """Return the diagnostics for a plan's evidence: see `ToleranceEvidence`.

    Args:
        groups: Allocated groups.
        low: First importance.
        high: Second importance.
        found: Allocation with the removed units.
        costs: Cost model of the groups.
    """
    low = removal_positions(groups, low)
    depth = {name: len(units) for name, units in found.removed.items()}
    total = sum(group.size for group in groups)
    solver = Solver(groups, low, high)
    cost: Literal["macs", "params"] = "params" if all(group.kind == "expert" for group in groups) else "macs"
    return ToleranceEvidence(
        tolerance=found.tolerance,
        share=found.share,
        protected_mass={g.name: protected_mass(low[g.name], high[g.name], depth[g.name]) for g in groups},
        exchange=_against_uniform(groups, low, high, depth, costs, cost),
        compared_by=cost,
        kept_by_tolerance={str(t): 1 - sum(solver.depths(t).values()) / total for t in TOLERANCES},
    ).to_dict()


def _against_uniform(
    groups: Sequence[Group], low: Scores, high: Scores, depth: dict[str, int], costs: CostModel, cost: str
) -> UniformComparison | None:
    kept = {group.name: group.size - depth[group.name] for group in groups}
    share = 1 - getattr(costs.total(kept), cost) / getattr(costs.full, cost)
    if share <= 0:
        return None
    try:
        even = uniform(groups, low, costs, Budget(**{cost: share}), most=MOST)
    except ValueError:  # groups with a minimum of kept units cannot all give the same share
        return None
    return exchange(low, high, depth, {name: len(units) for name, units in even.items()})
