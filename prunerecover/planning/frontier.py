"""Frontier of a network in depth and width: plans for several shares of a cost, from one library."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import nn

from prunerecover.display.progress import progress
from prunerecover.divergence.registry import Divergence, comparing_by
from prunerecover.frontiers.frontier import Frontier
from prunerecover.importance.measuring.losses import Loss
from prunerecover.model.batches import Batches
from prunerecover.plan.evidence import FrontierPoint
from prunerecover.plan.plan import Plan
from prunerecover.planning.arguments import PruningConfig, budget_of
from prunerecover.planning.budget_search import BudgetSearch
from prunerecover.planning.planner import Planner
from prunerecover.refusal import Refusal
from prunerecover.session.removed_share import measured_share
from prunerecover.session.session import Session
from prunerecover.width.groups.rounding import RoundTo

SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
COUNTED = ("macs", "params")


def frontier(
    model: nn.Module,
    cost: str | Sequence[str] = "macs",
    *,
    batches: Batches,
    shares: Sequence[float] = SHARES,
    loss: Loss | None = None,
    kinds: str | Sequence[str] | None = None,
    equal_layers: bool = False,
    round_to: RoundTo | None = None,
    ignore: Sequence[str] = (),
    seed: int = 0,
    store: str | Path | None = None,
    divergence: str | Divergence | None = None,
) -> Frontier:
    """Return the savings and divergences of plans for several shares of a cost.

    The library of `plan_pruning` is made once. For each share, the first choice is fitted and judged on held-out
    samples, without refinement or tuning: `Frontier.plan` adds these, without new scores of single variants.

    Args:
        model: Network, wrapped or not; bit-identical afterwards.
        cost: Cost of the shares: "macs", "params", "latency", "checkpoint" or "active_params"; or several, each with
            the same share.
        batches: Calibration batches; see `plan_pruning` for this and all later arguments.
        shares: Shares to remove, in rising order; impossible ones are left out.
        loss: Loss.
        kinds: Kinds of units to remove.
        equal_layers: Switch for equal sizes of equal layers.
        round_to: Multiples for the sizes of groups.
        ignore: Shell patterns of names to keep.
        seed: Seed.
        store: Folder of intermediate results.
        divergence: Divergence of outputs.

    Raises:
        ValueError: If no unit may go in depth or in width, outputs cannot be compared, or no share can go.
    """
    config = PruningConfig(
        loss=loss, kinds=kinds, equal_layers=equal_layers, round_to=round_to, ignore=ignore, seed=seed, store=store
    )
    with comparing_by(divergence), progress("planning several budgets"):
        session = Session.with_dense_reference(model, batches, loss=loss, seed=seed)
        return frontier_of(Planner(session, cost, config), shares, divergence)


def frontier_of(
    planner: Planner, shares: Sequence[float] = SHARES, divergence: str | Divergence | None = None
) -> Frontier:
    """Return the frontier of a planner; see `frontier`.

    Args:
        planner: Planner of the cost, or of several.
        shares: Shares to remove.
        divergence: Divergence of outputs, for later plans.

    Raises:
        ValueError: See `frontier`.
    """
    costs = planner.budgeted
    with planner.searching():
        points = _points(planner, shares)

    def plan_at(share: float) -> Plan:
        with comparing_by(divergence), planner.searching():
            return BudgetSearch(planner, budget_of(dict.fromkeys(costs, share))).run()

    return Frontier(points, plan_at, costs[0] if len(costs) == 1 else costs)


def _points(planner: Planner, shares: Sequence[float]) -> list[FrontierPoint]:
    """Return the points of all possible shares."""
    if "memory" in planner.budgeted:
        raise Refusal(
            "costs independent of a load",
            "memory, which depends on a batch and a length",
            "Plan single budgets, such as plan_pruning(model, Budget(memory=0.3, batch=8, tokens=4096), ...).",
        )
    planner.score_width()
    if not planner.has_library:
        raise Refusal(
            "a network whose depth and width can be planned together, by outputs that can be compared",
            planner.why_no_depth or planner.why_no_width or "its units or its outputs are of another form",
            "Plan single budgets with plan_depth or plan_width.",
        )
    points = [point for share in shares if (point := _point(planner, share)) is not None]
    if not points:
        raise Refusal("shares that can go", f"not even {min(shares):.0%} can", "Ask for smaller ones.")
    return points


def _point(planner: Planner, share: float) -> FrontierPoint | None:
    """Return the point of a share; None if it is impossible."""
    try:
        state = planner.together(dict.fromkeys(planner.budgeted, share), rounds=0)
    except ValueError:
        return None
    edits, session = planner.edits(state.chosen), planner.session
    names = dict.fromkeys((*COUNTED, *planner.budgeted))
    costs = {cost: measured_share(session, planner.store, cost, edits) for cost in names}
    return FrontierPoint(share, state.divergence, costs)
