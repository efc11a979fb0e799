"""Removable units of a network, less ignored units, and refusals of budgets that no score changes."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from prunerecover.depth.arguments import SET_SEARCHES, DepthConfig, kinds_of
from prunerecover.depth.layers.family_units import check_blocks_apart, explain_missing_activations
from prunerecover.depth.layers.removals import Removals
from prunerecover.depth.search.goals import check_comparable, cost_of, count_by_kind, outermost
from prunerecover.display.progress import progress
from prunerecover.families.describe import is_supported
from prunerecover.graph.block_lists import check_blocks_stay
from prunerecover.graph.trace import Traced
from prunerecover.model.arguments import check_patterns, matches
from prunerecover.plan.budget import Budget
from prunerecover.plan.kinds import FAMILY_KINDS
from prunerecover.plan.units import Unit
from prunerecover.session.session import Session
from prunerecover.sites.depth import no_unit, of_all_kinds


def units_that_may_go(
    model: nn.Module, traced: Traced, kinds: Sequence[str], config: DepthConfig
) -> tuple[Removals, tuple[Unit, ...]]:
    """Return the removals of a network, and the units less ignored units.

    Args:
        model: Unwrapped model in evaluation mode.
        traced: Trace of a sample.
        kinds: Kinds of the units.
        config: Arguments of planning, with the ignored units, and whether strided layers may go.

    Raises:
        ValueError: If the network has no unit of the kinds left, or a pattern matches none.
    """
    if is_supported(model):
        check_blocks_apart(model)
        if "activation" in kinds and set(kinds) != set(FAMILY_KINDS):
            explain_missing_activations(model)
    removals = Removals(model, traced, kinds, include_strided=config.include_strided)
    if config.ignore and removals.units:
        every = of_all_kinds(removals)
        check_patterns(config.ignore, [*(unit.name for unit in every.units), *every.refused], "units")
    units = tuple(unit for unit in removals.units if not matches(unit.name, config.ignore))
    if removals.units and not units:
        raise ValueError(
            f"Expected units that may go, but all {len(removals.units)} of kind {', '.join(kinds)} match ignore="
            f"{list(config.ignore)}. Ignore fewer."
        )
    if not units:
        raise no_unit(removals, kinds)
    return removals, units


def check_feasible(session: Session, budget: Budget, config: DepthConfig) -> None:
    """Raise the errors of `plan_depth` that need no scores.

    Args:
        session: Network and samples, of which the first is run.
        budget: Share of the MACs or parameters; budgets of other costs are only checked against the graph.
        config: All other arguments of `plan_depth`.

    Raises:
        ValueError: If the budget cannot be met, or needs an importance comparable across kinds.
    """
    budget = budget if budget.latency is not None else session.in_shares(budget)
    model, kinds = session.model, kinds_of(session.model, budget, config.kinds)
    with progress("checking the budget"), session.evaluating():
        removals, units = units_that_may_go(model, session.traced, kinds, config)
        if budget.in_units:
            wanted = budget.counts(count_by_kind(units))
            check_blocks_stay(removals.block_lists, units, wanted.get("block", 0))
        else:
            check_share(session, removals, units, budget, config)


def check_share(
    session: Session, removals: Removals, units: Sequence[Unit], budget: Budget, config: DepthConfig
) -> None:
    """Raise ValueError if all units of a supported family together hold less than a share of a counted cost.

    Args:
        session: Network and samples.
        removals: Units of the network.
        units: Units, less ignored units.
        budget: Share of a cost; latency is not checked.
        config: Arguments of planning.
    """
    if budget.share is None or budget.latency is not None or not is_supported(session.model):
        return
    if any(unit.kind == "layer" for unit in units):
        return
    cost, share = budget.share
    if config.search not in SET_SEARCHES:
        check_comparable(units, config.registered)
    most_blocks = sum(unit.kind == "block" for unit in removals.units) - 1
    staying = [unit for unit in units if unit.kind == "block"][most_blocks:]
    able = [unit for unit in units if cost_of(unit, cost) > 0 and unit not in staying]
    with removals.fitted({}):
        most = session.cost(cost).removed_share(removals.edits(outermost(able))) if able else 0.0
    if most < share:
        raise ValueError(
            f"Expected units that hold {share:.1%} of the {cost}, but all {len(able)} that may go hold {most:.1%}. "
            "Lower the budget, or ignore fewer units."
        )
