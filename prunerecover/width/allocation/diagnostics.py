"""Diagnostics of a plan by Tolerance of Difference, from the analysis of arXiv 2508.02291.

Three questions: how much protected score enters what goes, against what ranks alone allow; whether ToD's depths lose
less protected score than uniform ones at the same cost; and how the kept units depend on the tolerance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from prunerecover.plan.budget import Budget
from prunerecover.plan.evidence import ToleranceEvidence, UniformComparison
from prunerecover.plan.groups import Group
from prunerecover.width.allocation.by_saliency import uniform
from prunerecover.width.allocation.cost_model import CostModel
from prunerecover.width.allocation.tolerance import exchange, protected_mass
from prunerecover.width.allocation.tolerance_allocation import MOST, Solver, ToleranceAllocation
from prunerecover.width.groups.unit_slices import Scores, removal_positions

TOLERANCES = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5)


def tolerance_evidence(
    groups: Sequence[Group], removal: Scores, protection: Scores, found: ToleranceAllocation, costs: CostModel
) -> dict[str, Any]:
    """Return the diagnostics, as they stand in a plan's evidence: see `ToleranceEvidence`.

    Args:
        groups: That were allocated.
        removal: The removal signal.
        protection: The protection signal.
        found: What goes.
        costs: Of the groups.
    """
    removal = removal_positions(groups, removal)
    depth = {name: len(units) for name, units in found.removed.items()}
    total = sum(group.size for group in groups)
    solver = Solver(groups, removal, protection)
    cost: Literal["macs", "params"] = "params" if all(group.kind == "expert" for group in groups) else "macs"
    masses = {g.name: protected_mass(removal[g.name], protection[g.name], depth[g.name]) for g in groups}
    return ToleranceEvidence(
        tolerance=found.tolerance,
        share=found.share,
        protected_mass={name: (mass.entered, mass.bound) for name, mass in masses.items()},
        exchange=_against_uniform(groups, removal, protection, depth, costs, cost),
        compared_by=cost,
        kept_by_tolerance={str(t): 1 - sum(solver.depths(t).values()) / total for t in TOLERANCES},
    ).to_dict()


def _against_uniform(
    groups: Sequence[Group], removal: Scores, protection: Scores, depth: dict[str, int], costs: CostModel, cost: str
) -> UniformComparison | None:
    kept = {group.name: group.size - depth[group.name] for group in groups}
    share = 1 - getattr(costs.total(kept), cost) / getattr(costs.full, cost)
    if share <= 0:
        return None
    try:
        even = uniform(groups, removal, costs, Budget(**{cost: share}), most=MOST)
    except ValueError:  # groups that must keep some units cannot all give the same share
        return None
    other = {name: len(units) for name, units in even.items()}
    result = exchange(removal, protection, depth, other)
    return UniformComparison(taken=result.taken, spared=result.spared)
