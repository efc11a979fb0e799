"""Diagnostics of a plan by Tolerance of Difference, from the analysis of arXiv 2508.02291.

Three questions: the protected score of removed units, against the bound from ranks alone; the loss of protected score
at ToD's depths, against uniform depths at the same cost; and the number of kept units as a function of the tolerance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from prunerecover.importance.measuring.unit_slices import Scores
from prunerecover.plan.budget import Budget
from prunerecover.plan.evidence import ToleranceEvidence, UniformComparison
from prunerecover.plan.groups import Group
from prunerecover.width.allocation.by_importance import uniform
from prunerecover.width.allocation.cost_model import CostModel
from prunerecover.width.allocation.removal_order import removal_positions
from prunerecover.width.allocation.tolerance import exchange, protected_mass
from prunerecover.width.allocation.tolerance_allocation import MOST, Solver, ToleranceAllocation

TOLERANCES = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5)


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
