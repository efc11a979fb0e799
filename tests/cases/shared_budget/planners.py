"""Planners whose library is scored, made once for several tests."""

from __future__ import annotations

from functools import cache

from cases.shared_budget.networks import images, vit

from prunerecover.session.session import Session
from prunerecover.shared_budget.arguments import SharedBudgetConfig
from prunerecover.shared_budget.planner import SharedBudgetPlanner


@cache
def vit_planner() -> SharedBudgetPlanner:
    """Return the planner of a tiny ViT of two blocks, its library scored."""
    planner = SharedBudgetPlanner(Session(vit(depth=2), images(6)), "macs", SharedBudgetConfig())
    with planner.session.evaluating():
        assert planner.library.scored
    return planner
