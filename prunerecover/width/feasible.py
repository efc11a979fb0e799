"""Refusals of planning in width that no score changes: ignored names, and budgets beyond the share that can go."""

from __future__ import annotations

import torch

from prunerecover.display.progress import progress
from prunerecover.plan.budget import Budget
from prunerecover.session.session import Session
from prunerecover.width.allocation.by_importance import global_ranking, per_cost, uniform
from prunerecover.width.allocation.equal_layers import equalised
from prunerecover.width.arguments import WidthConfig
from prunerecover.width.groups.rounding import rounded
from prunerecover.width.planner import WidthPlanner


def check_names(session: Session, budget: Budget | None, config: WidthConfig) -> WidthPlanner:
    """Raise what `plan_width` would raise of names and kinds of groups, however much goes; return its planner.

    Args:
        session: Network and samples, of which the first is run.
        budget: Budget, which may name kinds.
        config: All other arguments of `plan_width`.

    Raises:
        ValueError: If the model has no groups, or a pattern in `ignore` matches none.
    """
    with progress("checking the names of groups"):
        return WidthPlanner(session, config.for_budget(budget))


def check_feasible(session: Session, budget: Budget | None, config: WidthConfig) -> None:
    """Raise what `plan_width` would raise before anything is scored.

    Latency is not measured, and what a callable allocates is not known.

    Args:
        session: Network and samples, of which the first is run.
        budget: Budget; None: the tolerance says how much goes.
        config: All other arguments of `plan_width`.

    Raises:
        ValueError: As of `check_names`, or if the budget cannot be met.
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
