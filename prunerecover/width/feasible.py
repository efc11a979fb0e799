"""Refusals of planning in width without any scores: ignored names, and budgets out of reach."""

from __future__ import annotations

import torch

from prunerecover.display.progress import progress
from prunerecover.plan.budget import Budget
from prunerecover.session.session import Session
from prunerecover.width.allocation.by_importance import global_ranking, per_cost, uniform
from prunerecover.width.allocation.equal_layers import equalised
from prunerecover.width.allocator import WidthAllocator
from prunerecover.width.arguments import WidthConfig
from prunerecover.width.groups.rounding import rounded


def check_names(session: Session, budget: Budget | None, config: WidthConfig) -> WidthAllocator:
    """Raise the errors of `plan_width` about names and kinds of groups, whatever the amount; return the planner.

    Args:
        session: Network and samples, of which the first is run.
        budget: Budget, perhaps with named kinds.
        config: Further arguments of `plan_width`.

    Raises:
        ValueError: If the model has no groups, or a pattern in `ignore` matches no group.
    """
    with progress("checking the names of groups"):
        return WidthAllocator(session, config.for_budget(budget))


def check_feasible(session: Session, budget: Budget | None, config: WidthConfig) -> None:
    """Raise the errors of `plan_width` before any scoring.

    Latency is not measured, and allocations by a callable are not checked.

    Args:
        session: Network and samples, of which the first is run.
        budget: Budget; None: the tolerance decides the amount.
        config: Further arguments of `plan_width`.

    Raises:
        ValueError: The errors of `check_names`, and a budget out of reach.
    """
    planner, config = check_names(session, budget, config), config.for_budget(budget)
    rule = per_cost if config.by_tolerance else config.allocated_by.rule
    with progress("checking the budget"):
        if budget is None or budget.latency is not None or rule not in (per_cost, global_ranking, uniform):
            return
        groups = rounded(planner.groups, config.round_to)
        alike = {group.name: torch.ones(group.size, dtype=torch.float64) for group in groups}
        budget = session.in_shares(budget)
        removed = rule(groups, alike, planner.costs, budget)
        if config.equal_layers:
            equalised(groups, removed, planner.costs, budget)
