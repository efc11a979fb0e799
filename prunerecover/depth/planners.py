"""Planners of depth by search: by the parts of a supported family, or by the computation graph."""

from __future__ import annotations

from prunerecover.depth.arguments import DepthConfig, kinds_of, planned_by_parts
from prunerecover.depth.family_planner import FamilyPlanner
from prunerecover.depth.graph_planner import GraphPlanner
from prunerecover.depth.planner import DepthPlanner
from prunerecover.plan.budget import Budget
from prunerecover.session.session import Session


def planner_for(session: Session, budget: Budget, config: DepthConfig) -> DepthPlanner:
    """Return the planner of a budget: by the parts of a supported family, or by the computation graph.

    Args:
        session: Network and samples.
        budget: Budget in units of some kinds, or in shares of a cost, with the kinds of the configuration.
        config: All other arguments of `plan_depth`.
    """
    kinds = kinds_of(session.model, budget, config.kinds)
    by_parts = planned_by_parts(session.model, kinds, config)
    return (FamilyPlanner if by_parts else GraphPlanner)(session, kinds, config)
