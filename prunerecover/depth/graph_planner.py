"""Plan the depth of any network, as its computation graph shows it: layers, branches and blocks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from torch import nn

from prunerecover.calibration.stand_in_fits import numbered
from prunerecover.depth.arguments import SET_SEARCHES, DepthConfig, not_ignored
from prunerecover.depth.graph_fits import fit_alone, fit_together
from prunerecover.depth.layers.pruned_graph import NotRemovable
from prunerecover.depth.layers.removals import Removals
from prunerecover.depth.layers.scoring import GraphContext
from prunerecover.depth.layers.standard import with_blocks_taken_out
from prunerecover.depth.layers.variants import Variants
from prunerecover.depth.planner import Decision, DepthPlanner, Searched, numbers
from prunerecover.depth.search.goals import Counted, Goal, Share, not_enough
from prunerecover.depth.search.in_turn import in_turn
from prunerecover.depth.search.joint import JointSearch
from prunerecover.depth.search.latency_shares import LatencyShares, searched_for_latency
from prunerecover.depth.search.objectives import LossIncrease, Objective, OutputDivergence
from prunerecover.depth.search.selection import check_comparable
from prunerecover.display.progress import progress
from prunerecover.divergence.outputs import OtherShape
from prunerecover.graph.block_lists import check_blocks_stay
from prunerecover.graph.trace import Traced
from prunerecover.model.arguments import check_patterns
from prunerecover.plan.budget import Budget
from prunerecover.plan.edits import Bypass
from prunerecover.plan.units import Unit, names_of
from prunerecover.sites.depth import no_unit, of_all_kinds

TINY = 1e-12  # a price that no unit has


class GraphPlanner(DepthPlanner):
    """Plans for a network of any architecture; see `DepthPlanner`."""

    usual_search = "joint"

    def _check(self) -> None:
        if self.search == "run":
            raise ValueError(
                f"Expected a model of a supported family for search='run', which compares the ends of runs of its "
                f"blocks, but got {type(self.model).__name__}. Use search='joint'."
            )

    def _prepare(self) -> None:
        self.removals, self.units = units_that_may_go(self.model, self.session.traced, self.kinds, self.config)
        with progress("running the dense network"):
            self.variants = Variants(self.removals, self._objective(), self.store)
        if self.config.replace == "calibrated" and self.samples.enough:
            fit_alone(self.variants, self.samples)
        self._saved: dict[tuple[str, float | None, frozenset[str]], float] = {}

    def blocks_left_as_identity(self) -> list[str]:
        """Names of the blocks in whose place an identity stays: the rest is no model that transformers can make."""
        with self.session.evaluating():
            edits = {unit.name: self.removals.edits([unit]) for unit in self.units if unit.kind == "block"}
            taken = {name: with_blocks_taken_out(self.model, self.example, own) for name, own in edits.items()}
        return [name for name, own in taken.items() if any(isinstance(edit, Bypass) for edit in own)]

    def _objective(self) -> Objective:
        """Return what sets of units are judged by: the loss, where a search goes by it."""
        if self.config.by_loss and self.session.loss is not None:
            return LossIncrease(self.session.loss, self.session.batches, self.session.device)
        return OutputDivergence(self.samples)

    def _decide(self, budget: Budget, units: Sequence[Unit]) -> Decision:
        scores, chosen = self._choose(budget, units)
        divergence = self._divergence(chosen)
        fits = fit_together(self.variants, self.samples, chosen)
        edits = with_blocks_taken_out(self.model, self.example, self.removals.edits(chosen))
        edits, tensors = numbered(edits, fits)
        finite = {name: value for name, value in scores.items() if math.isfinite(value)}
        return Decision(edits, finite, divergence, chosen, tensors)

    def _divergence(self, chosen: Sequence[Unit]) -> dict[str, float]:
        """Return the divergence of the output by the unit that went last; none if what it detects has another shape."""
        if self.config.by_loss:
            return {}
        try:
            found = {unit.name: self.variants.divergence(chosen) for unit in chosen[-1:]}
        except OtherShape:
            return {}
        return {name: value for name, value in found.items() if math.isfinite(value)}

    def _choose(self, budget: Budget, units: Sequence[Unit]) -> Searched:
        goal, search = self._goal(units, budget, self._saved_by_units), self.search
        if isinstance(goal, Counted):
            check_blocks_stay(self.removals.block_lists, units, goal.wanted.get("block", 0))
        if search in SET_SEARCHES:
            if budget.latency is not None and isinstance(goal, Share):
                return self._searched_for_latency(goal)
            return self._searched(goal)
        scores = self.rank()
        if search == "rounds":
            return scores, self._in_rounds(goal)
        ranked = sorted((u for u in units if math.isfinite(scores[u.name])), key=lambda u: scores[u.name])
        if search == "two_to_one":
            return scores, self._in_turn([_no_attention, _is_attention, _no_attention], ranked, goal)
        if budget.share is not None:
            check_comparable(units, self.config.registered)
            ranked.sort(key=lambda unit: scores[unit.name] / max(goal.price((unit,)), TINY))
        return scores, self._in_turn([lambda _: True], ranked, goal)

    def _in_turn(self, pattern: Sequence[Callable[[Unit], bool]], ranked: Sequence[Unit], goal: Goal) -> list[Unit]:
        """Take ranked units in turn; the network is run without each set if it does not run without the last one."""
        chosen = in_turn(pattern, ranked, goal, self.removals.why_not)
        if not self.removals.why_not(chosen, run=True):
            return chosen
        return in_turn(pattern, ranked, goal, partial(self.removals.why_not, run=True))

    def _searched(self, goal: Goal) -> Searched:
        found = JointSearch(self.variants, goal, self.search, self._known)
        chosen = found.run()
        return found.first, chosen

    def _searched_for_latency(self, goal: Share) -> Searched:
        """Return the best set by estimated shares of the latency; what it saves is measured."""
        kinds = [unit.kind for unit in goal.units]
        shares = LatencyShares(kinds, self._half_of, lambda own: self._saved_by_units(own, "macs"), self.store)
        return searched_for_latency(
            goal, shares, self._searched, lambda found: self._saved_by_units(found[1], "latency", goal.share)
        )

    def _half_of(self, kind: str, cost: str) -> float:
        """Return the share of a cost that goes with half of the units of a kind; latency on few samples."""
        dense, units = self.session.cost(cost), self._some_of(kind)
        dense = dense.on_few if cost == "latency" else dense
        return dense.removed_share(self.removals.edits(units)) if units else 0.0

    def _some_of(self, kind: str) -> list[Unit]:
        """Return half of the units of a kind that save MACs alone, or fewer if so many save none together.

        Widths around several layers may not follow; one alone is what saves most.
        """
        saved = {unit: self._saved_by_units([unit], "macs") for unit in self.units if unit.kind == kind}
        own, step = [unit for unit in saved if saved[unit] > 0], 2
        while step < len(own):
            if self._saved_by_units(own[::step], "macs") > 0:
                return own[::step]
            step *= 2
        return sorted(own, key=saved.__getitem__)[-1:]

    def _in_rounds(self, goal: Goal) -> list[Unit]:
        """Score the units anew on the pruned network, and remove the lowest, in turn."""
        chosen: list[Unit] = []
        with progress("removing one unit after the other", goal.total) as advance:
            while goal.reached(chosen) < 1:
                left = [unit for unit in goal.open(chosen) if goal.price((unit,)) > 0]
                found = self._kept(partial(self._scored, left, tuple(chosen)), chosen)
                able = [unit for unit in left if math.isfinite(found[unit.name])]
                if not able:
                    raise not_enough(goal, chosen, self.variants.refused)
                chosen.append(min(able, key=lambda unit: found[unit.name] / goal.price((unit,))))
                advance()
        return chosen

    def _ranked(self) -> dict[str, float]:
        return self._scored(self.units, ())

    def _scored(self, units: Sequence[Unit], gone: tuple[Unit, ...]) -> dict[str, float]:
        session, batches = self.session, tuple(self.session.batches)
        context = GraphContext.of(self.variants, units, gone, batches, loss=session.loss, seed=session.seed)
        return numbers(self.config.registered(context))

    def _saved_by_units(self, units: Sequence[Unit], cost: str, wanted: float | None = None) -> float:
        key = cost, wanted if cost == "latency" else None, names_of(units)
        if key not in self._saved:
            try:
                with self.removals.trying(units):
                    self._saved[key] = self.session.cost(cost).removed_share(self.removals.edits(units), wanted=wanted)
            except NotRemovable:  # its widths cannot be reconciled, or it raises: it saves nothing, and is not offered
                self._saved[key] = 0.0
        return self._saved[key]


def units_that_may_go(
    model: nn.Module, traced: Traced, kinds: Sequence[str], config: DepthConfig
) -> tuple[Removals, tuple[Unit, ...]]:
    """Return all that can be taken out of a network, and the units of it that are not ignored.

    Args:
        model: Unwrapped, in evaluation mode.
        traced: What a pass of one sample shows.
        kinds: Of the units.
        config: Says which are ignored, and whether strided layers may go.

    Raises:
        ValueError: If it has no such unit, or a pattern matches none.
    """
    removals = Removals(model, traced, kinds, include_strided=config.include_strided)
    if config.ignore and removals.units:
        every = of_all_kinds(removals)
        check_patterns(config.ignore, [*(unit.name for unit in every.units), *every.refused], "units")
    units = not_ignored(removals.units, config.ignore)
    if removals.units and not units:
        raise ValueError(
            f"Expected units that may go, but all {len(removals.units)} of kind {', '.join(kinds)} match ignore="
            f"{list(config.ignore)}. Ignore fewer."
        )
    if not units:
        raise no_unit(removals, kinds)
    return removals, units


def _is_attention(unit: Unit) -> bool:
    return unit.kind == "attention"


def _no_attention(unit: Unit) -> bool:
    return unit.kind != "attention"
