"""Searches in depth by name, for any network: replacements of units, choice of units, and the plan."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from prunerecover.calibration.samples import MIN_SAMPLES
from prunerecover.depth.arguments import DepthConfig, kinds_of
from prunerecover.depth.choice import Choice
from prunerecover.depth.evidence import steps_of, warn_of_excess
from prunerecover.depth.fits import finished, fit_alone, leave_by_name
from prunerecover.depth.graph_context import GraphContext
from prunerecover.depth.layers.standard import with_blocks_taken_out
from prunerecover.depth.removable import check_share, units_that_may_go
from prunerecover.depth.search.expected_passes import expected_passes
from prunerecover.depth.search.goals import Counted, Goal, Share, cost_of, count_by_kind
from prunerecover.depth.search.objectives import LossIncrease, Objective, OutputDivergence
from prunerecover.depth.unit_costs import UnitCosts
from prunerecover.depth.variants import Variants
from prunerecover.display.progress import progress
from prunerecover.families.describe import is_supported
from prunerecover.importance.saved_scores import SavedScores
from prunerecover.plan.budget import Budget
from prunerecover.plan.edits import Bypass, Edit
from prunerecover.plan.evidence import BudgetEvidence, DepthEvidence
from prunerecover.plan.kinds import TRAITS
from prunerecover.plan.plan import Plan
from prunerecover.plan.units import Unit
from prunerecover.session.removed_share import measured_share, share_evidence
from prunerecover.session.session import Session
from prunerecover.store.search_store import SearchStore
from prunerecover.surgery.provenance import plan_for
from prunerecover.surgery.saved_cost import CLOCKS


class DepthSearch:
    """Searches by name for units of depth to remove, for several budgets of one network; shared work is done once.

    Args:
        session: Network and samples.
        kinds: Kinds of removable units; None: as in `plan_depth`.
        config: All other arguments of `plan_depth`.

    Attributes:
        session: Network and samples.
        config: Arguments of planning.
        units: Removable units, in order of depth.
        costs: Costs of the units.
    """

    def __init__(self, session: Session, kinds: Sequence[str] | None = None, config: DepthConfig | None = None) -> None:
        self.session, self.config = session, config or DepthConfig()
        self.model, self.kinds = session.model, kinds_of(session.model, None, kinds)
        self.config.check_ready(self.kinds)
        self._check_run()
        self.store = SearchStore(self.config.store, session.device)
        with session.evaluating():
            self.removals, self.units = units_that_may_go(self.model, session.traced, self.kinds, self.config)
            self.variants = self._judged()
        self.costs = UnitCosts(session, self.removals, self.units, self.store)
        self._scores = self._saved_scores()
        how = {name: value for name, value in vars(self.config).items() if name not in ("scores", "store")}
        session.begin(self.store, type(self).__name__, self.kinds, how, self._scores)
        with session.evaluating():
            self._fit_alone()

    def plan(self, budget: Budget) -> Plan:
        """Return the plan of a budget; a warning reports a larger excess than the units' sizes require.

        Args:
            budget: See `plan_depth`.
        """
        self.store.extend(budget)
        passes = expected_passes(self.units, budget, self.search)
        with progress("planning depth", expected=passes * self.session.pass_seconds):
            plan = self._planned(budget)
        for cost, removed in BudgetEvidence.of(plan.evidence).removed_share.items():
            warn_of_excess(cost, removed)
        return plan

    def rank(self) -> dict[str, float]:
        """Return the importance of every unit of the dense network; computed once."""
        if self._scores is None:
            with progress("scoring units"), self.session.evaluating():
                self._scores = self._kept(partial(self._ranked, self.units, ()))
        return self._scores

    def rank_again(self, units: Sequence[Unit], gone: tuple[Unit, ...]) -> dict[str, float]:
        """Return the importances of units on the network without removed units.

        Args:
            units: Units that stay.
            gone: Removed units.
        """
        return self._kept(partial(self._ranked, units, gone), gone)

    @property
    def search(self) -> str:
        """Name of the search."""
        by_sets = self.config.registered.name == "output_divergence"
        return self.config.search or ("greedy" if by_sets else "one_shot")

    @property
    def known(self) -> Mapping[str, float]:
        """The divergence of every unit alone, if known."""
        return self._scores or {} if self.config.registered.name == "output_divergence" else {}

    def removed_share(self, plan: Plan, cost: str) -> float:
        """Return the share of the network's cost saved by a plan, merged."""
        with self.session.evaluating():
            return self.session.cost(cost).removed_share(plan.edits)

    def share_of_one(self, kind: str, cost: str) -> float:
        """Return the share of the cost saved by a unit without a replacement: the mean over half of a kind."""
        units = [unit for unit in self.units if unit.kind == kind][::2]
        with self.session.evaluating(), self.removals.fitted({}):
            return self.session.cost(cost).removed_share(self.removals.edits(units)) / len(units)

    def blocks_left_as_identity(self) -> list[str]:
        """Names of the blocks replaced by an identity, where transformers cannot construct the rest of the model."""
        with self.session.evaluating():
            edits = {unit.name: self.removals.edits([unit]) for unit in self.units if unit.kind == "block"}
            taken = {name: with_blocks_taken_out(self.model, self.session.example, own) for name, own in edits.items()}
        return [name for name, own in taken.items() if any(isinstance(edit, Bypass) for edit in own)]

    def _planned(self, budget: Budget) -> Plan:
        with self.session.evaluating():
            check_share(self.session, self.removals, self.units, budget, self.config)
            choice = Choice(self.session, self.variants, self.costs, self, self.config, self.search)
            scores, order = choice.chosen(self._goal(_aim(budget)), budget)
            edits, tensors = finished(
                self.session, self.variants, order, fitted=self._fits, by_loss=self.config.by_loss
            )
            found = DepthEvidence(
                units={unit.name: unit.kind for unit in self.units},
                importance={name: value for name, value in scores.items() if math.isfinite(value)},
                samples=self.session.samples.n_samples,
                divergence=self._divergence(order, edits, tensors),
            )
            removed = self._removed_share(edits, budget)
            steps = steps_of(self.session, edits, order)
        return plan_for(
            self.model,
            edits,
            method=f"depth/{self.config.registered.name}",
            arguments={
                "budget": budget.to_dict(),
                "replace": self.config.replace,
                "search": self.search,
                "kinds": sorted({unit.kind for unit in self.units}),
                "ignore": list(self.config.ignore),
            },
            seed=self.config.seed,
            tensors=tensors,
            example=self.session.example,
            evidence={**found.to_dict(), **removed, **steps},
        )

    def _goal(self, budget: Budget) -> Goal:
        """Return the goal of a budget."""
        if budget.share is None:
            return Counted(self.units, budget.counts(count_by_kind(self.units)))
        cost, share = budget.share
        most_blocks = sum(unit.kind == "block" for unit in self.removals.units) - 1
        counted = "macs" if cost == "latency" else cost  # no clock resolves a single unit
        return Share(
            self.units,
            share,
            lambda chosen: self.costs.saved(chosen, cost, share),
            lambda alone: self.costs.saved(alone, counted, share),
            most_blocks=most_blocks if is_supported(self.model) else None,
        )

    def _check_run(self) -> None:
        if self.search == "run" and not is_supported(self.model):
            raise ValueError(
                f"Expected a model of a supported family for search='run', which compares the ends of runs of its "
                f"blocks, but got {type(self.model).__name__}. Leave the search out."
            )

    def _judged(self) -> Variants:
        """Return the judge of sets: by the loss, where the search minimises the loss, else by the output divergence."""
        session, samples = self.session, self.session.samples
        judged = samples.held_out if self._fits and is_supported(self.model) else samples.all_samples
        objective: Objective = OutputDivergence(judged, few=len(samples.held_out))
        if self.config.by_loss and session.loss is not None:
            objective = LossIncrease(session.loss, session.batches, session.device)
        with progress("running the dense network"):
            return Variants(self.removals, objective, self.store)

    @property
    def _fits(self) -> bool:
        """Whether replacements are fitted."""
        return self.config.replace == "calibrated" and self.session.samples.enough

    def _fit_alone(self) -> None:
        samples, family = self.session.samples, is_supported(self.model)
        if self._fits:
            fit_alone(self.session, self.variants)
        elif self.config.replace != "calibrated":
            leave_by_name(self.removals, self.config.replace)
        elif family and any(TRAITS[unit.kind].fitted for unit in self.units):
            warnings.warn(
                f"Only {samples.n_samples} calibration samples (fewer than {MIN_SAMPLES}): removed units leave zero "
                "instead of a fit.",
                stacklevel=5,
            )

    def _divergence(
        self, chosen: Sequence[Unit], edits: Sequence[Edit], tensors: Mapping[str, Tensor]
    ) -> dict[str, float]:
        """Return the divergence of the output by the name of the last removed unit; empty if not comparable."""
        if self.config.by_loss or not chosen or not self.session.output.comparable:
            return {}
        found = self.session.output.divergence_of(self.session.output.pruned(edits, tensors))
        return {chosen[-1].name: found} if math.isfinite(found) else {}

    def _removed_share(self, edits: Sequence[Edit], budget: Budget) -> dict[str, Any]:
        """Return the evidence of the removed share of a cost; empty for a budget in units."""
        if budget.share is None or not edits:
            return {}
        (cost, asked), smallest = budget.share, None
        if cost != "latency":
            units = sorted((unit for unit in self.units if cost_of(unit, cost)), key=lambda unit: cost_of(unit, cost))
            smallest = next((share for unit in units if (share := self.costs.saved([unit], cost)) > 0), 0.0)
        merged = measured_share(self.session, self.store, cost, edits)
        return share_evidence(self.session, edits, {cost: asked}, {cost: merged}, smallest)

    def _saved_scores(self) -> dict[str, float] | None:
        if not isinstance(self.config.scores, SavedScores):
            return None
        saved = self.config.scores.of_units(self.model, self.config.registered.name, [unit.name for unit in self.units])
        return {name: float(value) for name, value in saved.items()}

    def _kept(self, importance: Callable[[], dict[str, float]], gone: Sequence[Unit] = ()) -> dict[str, float]:
        """Return importances of units, from the store if known there: no callable's, and divergences by unit sets."""
        if self.config.registered.name == "output_divergence" or not isinstance(self.config.importance, str):
            return importance()
        return self.store.result("importance", (unit.name for unit in gone), importance)

    def _ranked(self, units: Sequence[Unit], gone: tuple[Unit, ...]) -> dict[str, float]:
        session, batches = self.session, tuple(self.session.batches)
        how: dict[str, Any] = {"loss": session.loss, "seed": session.seed, "replace": self.config.replace}
        context = GraphContext.of(self.variants, units, gone, batches, **how)
        return {name: float(score) for name, score in self.config.registered(context).items()}


def _aim(budget: Budget) -> Budget:
    """Return the budget to plan for: clocks do not resolve shares of latency nearer than `CLOCKS`."""
    if budget.latency is None:
        return budget
    return Budget(latency=(share := budget.shares["latency"]) - min(CLOCKS, 0.05 * share))
