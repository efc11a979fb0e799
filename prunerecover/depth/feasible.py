"""Refusals of planning in depth that no score changes: budgets in a share of cost beyond the share that can go."""

from __future__ import annotations

from prunerecover.depth.arguments import DepthConfig, kinds_of, not_ignored, planned_by_parts
from prunerecover.depth.family.edits import saving_if_left
from prunerecover.depth.graph_planner import units_that_may_go
from prunerecover.depth.search.selection import check_comparable, check_most, count_by_kind
from prunerecover.display.progress import progress
from prunerecover.families.describe import describe
from prunerecover.graph.block_lists import check_blocks_stay
from prunerecover.plan.budget import Budget
from prunerecover.session.session import Session
from prunerecover.sites.find import find_units


def check_feasible(session: Session, budget: Budget, config: DepthConfig) -> None:
    """Raise what `plan_depth` would raise before anything is scored.

    Args:
        session: Network and samples, of which the first is run.
        budget: Share of the MACs or parameters; of others, only what the graph shows is looked at.
        config: All other arguments of `plan_depth`.

    Raises:
        ValueError: If the budget cannot be met, or needs an importance that compares across kinds.
    """
    budget = budget if budget.latency is not None else session.in_shares(budget)
    model, kinds = session.model, kinds_of(session.model, budget, config.kinds)
    with progress("checking the budget"), session.evaluating():
        if not planned_by_parts(model, kinds, config):
            removals, units = units_that_may_go(model, session.traced, kinds, config)
            if budget.in_units:
                wanted = budget.counts(count_by_kind(units))
                check_blocks_stay(removals.block_lists, units, wanted.get("block", 0))
        elif budget.latency is None and budget.share is not None:
            cost, share = budget.share
            units = not_ignored(find_units(model, session.example, kinds), config.ignore)
            check_comparable(units, config.registered)
            saving = saving_if_left(session.cost(cost), {})
            check_most(units, cost, share, saving, len(describe(model).blocks) - 1)
