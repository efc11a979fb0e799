"""Plans of depth and width together, by the planner or with named variants."""

from __future__ import annotations

from collections.abc import Mapping

from prunerecover import Plan
from prunerecover.library.variants import DENSE
from prunerecover.planning.planner import Planner
from prunerecover.solvers.state import State


def together(planner: Planner, share: float) -> Plan:
    """Return the plan for a share of the planner's cost."""
    return planner.plan(*planner.finished(planner.together(dict.fromkeys(planner.budgeted, share))))


def chosen(planner: Planner, names: Mapping[str, str]) -> State:
    """Return a choice of variants by site, fitted in order; other sites stay dense."""
    with planner.session.evaluating():
        return State(planner.library, {**dict.fromkeys(planner.library.sites, DENSE), **names})


def plan_with(planner: Planner, names: Mapping[str, str]) -> Plan:
    """Return the plan of a choice of variants by site."""
    return planner.plan(*planner.finished(chosen(planner, names)))
