"""Checks of a budget over depth and width before any score is computed."""

from __future__ import annotations

import warnings

from prunerecover.cost.units.cost_names import ALONE
from prunerecover.depth.removable import check_feasible as check_depth
from prunerecover.plan.budget import Budget
from prunerecover.planning.arguments import PruningConfig, check_costs
from prunerecover.planning.planner import Planner
from prunerecover.session.session import Session
from prunerecover.width.feasible import check_feasible as check_width


def check_names(session: Session, budget: Budget, config: PruningConfig) -> Planner:
    """Raise the errors of `plan_pruning` about names and kinds, for any share, and return its planner.

    Args:
        session: Network and samples; the first sample is run.
        budget: Shares of costs.
        config: All other arguments of `plan_pruning`.

    Raises:
        ValueError: If no unit can go, or a pattern in `ignore` matches no name.
    """
    with warnings.catch_warnings():  # warnings on a single batch, irrelevant without a plan
        warnings.simplefilter("ignore")
        return Planner(session, tuple(check_costs(budget).costs), config)


def check_feasible(session: Session, budget: Budget, config: PruningConfig) -> None:
    """Raise the errors of `plan_pruning` that need no scores.

    The joint savings of depth and width are unknown before planning: a budget is checked only where one of them is
    impossible.

    Args:
        session: Network and samples; the first sample is run.
        budget: Shares of costs; latency is not measured.
        config: All other arguments of `plan_pruning`.

    Raises:
        ValueError: As of `check_names`, or if the budget cannot be met.
    """
    planner = check_names(session, budget, config)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for one in budget.each():
            if not set(one.costs) <= set(ALONE):
                continue
            if planner.why_no_depth:
                check_width(session, one, planner.width_config)
            elif planner.why_no_width:
                check_depth(session, one, planner.depth_config)
