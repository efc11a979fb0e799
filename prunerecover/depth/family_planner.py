"""Plan the depth of a model of a supported family: blocks, attentions, MLPs, activations, and what they leave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn

from prunerecover.calibration.calibrator import Calibrator
from prunerecover.calibration.candidates import Choice
from prunerecover.depth.arguments import DepthConfig, check_ignore, not_ignored
from prunerecover.depth.family.calibrated_sets import CalibratedSets
from prunerecover.depth.family.edits import edits_of, saving_if_left
from prunerecover.depth.family.one_shot import one_shot
from prunerecover.depth.family.runs import nearest_runs
from prunerecover.depth.planner import Decision, DepthPlanner
from prunerecover.depth.search.goals import Goal
from prunerecover.depth.search.joint import JointSearch
from prunerecover.depth.search.selection import check_most
from prunerecover.depth.units import find_units
from prunerecover.families.describe import describe
from prunerecover.importance.context import DepthContext
from prunerecover.model.batches import Batches
from prunerecover.model.checks import check_blocks_apart
from prunerecover.plan.budget import Budget
from prunerecover.plan.kinds import FAMILY_KINDS
from prunerecover.plan.units import Unit


class FamilyPlanner(DepthPlanner):
    """Plans for a model of a supported family; see `DepthPlanner`."""

    usual_search = "greedy"

    def __init__(
        self,
        model: nn.Module,
        kinds: Sequence[str] = FAMILY_KINDS,
        *,
        batches: Batches,
        config: DepthConfig | None = None,
    ) -> None:
        super().__init__(model, kinds, batches=batches, config=config or DepthConfig())

    def _check(self) -> None:
        super()._check()
        check_blocks_apart(self.model)
        describe(self.model)  # a model of no supported family is explained before it is called

    def _prepare(self) -> None:
        found = find_units(self.model, [kind for kind in FAMILY_KINDS if kind in self.kinds], self.example)
        if self.config.ignore:
            check_ignore(self.config.ignore, find_units(self.model))
        self.units = not_ignored(found, self.config.ignore)
        self.calibrator = Calibrator(self.model, self.samples, self.units, self.config.replace, self.config.seed)
        self._sets = CalibratedSets(self.calibrator, refit=self.search == "exact" and self.calibrator.fits)
        self._saved: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}

    def _ranked(self) -> dict[str, float]:
        return self.config.registered(
            DepthContext(
                model=self.model,
                units=self.units,
                batches=tuple(self.batches),
                loss=self.config.loss,
                replace=self.config.replace,
                seed=self.config.seed,
                shared_calibrator=self.calibrator,
            )
        )

    def _decide(self, budget: Budget) -> Decision:
        units = [unit for unit in self.units if unit.kind in budget.kinds(FAMILY_KINDS)]
        if self.search == "one_shot":
            scores = self.rank()
            dense = self.dense_cost(budget.share[0]) if budget.share else None
            choices = one_shot(self.calibrator, units, scores, budget, self.config.registered, dense)
            ranked = sorted((choice.unit for choice in choices), key=lambda unit: scores[unit.name])
            return self._decided(scores, choices, ranked)
        if budget.share is not None:
            cost, share = budget.share
            check_most(units, cost, share, self._saver(cost), len(describe(self.model).blocks) - 1)
        goal = self._goal(units, budget, self._saved_together)
        found = JointSearch(self._sets, goal, self.search, self._known)
        chosen = found.best_of([found.run(), *self._runs(goal, found.first)])
        return self._decided(found.first, self._sets.choices(chosen), chosen)

    def _runs(self, goal: Goal, first: Mapping[str, float]) -> list[list[Unit]]:
        """Return contiguous runs of blocks that meet a goal, each of as few blocks as that takes.

        With a map for the whole run the output may change less than what units that are judged one by one suggest.

        Args:
            goal: How much has to go.
            first: Divergence of each unit alone: the order of a run.
        """
        blocks = [unit for unit in goal.units_to_score() if unit.kind == "block"]
        price = goal.price(blocks[:1]) if self.calibrator.fits and blocks else 0.0
        if price <= 0:
            return []
        least = max(int(1 / price), 1)
        count = next((n for n in range(least, len(blocks)) if goal.reached(blocks[:n]) >= 1), 0)
        runs = nearest_runs(self.calibrator, blocks, count) if count > 1 else []
        return [sorted(run, key=lambda unit: first[unit.name]) for run in runs if goal.reached(run) >= 1]

    def _decided(self, scores: dict[str, float], choices: Sequence[Choice], order: Sequence[Unit]) -> Decision:
        choices = self.calibrator.fitted_to_all(choices)
        edits, tensors = edits_of(self.model, ((choice.unit, choice.candidate) for choice in choices))
        divergence = {choice.unit.name: choice.divergence for choice in choices}
        return Decision(edits, scores, divergence, order, tensors)

    def _saved_together(self, units: Sequence[Unit], cost: str) -> float:
        """Return the share of a cost that goes with units, less what they leave."""
        leaves = self._sets.leaves_of(units)
        left = {unit.name: leaves.get(unit.name, leaves.get(unit.kind, "")) for unit in units}
        key = cost, frozenset(left.items())
        if key not in self._saved:
            named = {name: what for name, what in left.items() if what}
            self._saved[key] = saving_if_left(self.dense_cost(cost), named)(units)
        return self._saved[key]

    def _saved_by_units(self, units: Sequence[Unit], cost: str) -> float:
        return saving_if_left(self.dense_cost(cost), {})(units)
