"""Plan the depth of a model of a supported family: blocks, attentions, MLPs, activations, and what they leave."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from prunerecover.calibration.candidates import Choice
from prunerecover.depth.arguments import DepthConfig, not_ignored
from prunerecover.depth.family.calibrated_sets import CalibratedSets
from prunerecover.depth.family.edits import cost_left, edits_of, saving_if_left
from prunerecover.depth.family.kept_calibrator import KeptCalibrator
from prunerecover.depth.family.one_shot import one_shot
from prunerecover.depth.family.runs import angles_at_the_end, cosine_distances, runs_for
from prunerecover.depth.family.units import check_blocks_apart
from prunerecover.depth.planner import Decision, DepthPlanner, Searched, numbers
from prunerecover.depth.search.goals import Counted, Goal, Share, not_enough
from prunerecover.depth.search.joint import JointSearch
from prunerecover.depth.search.judge import Move
from prunerecover.depth.search.latency_shares import LatencyShares, searched_for_latency
from prunerecover.depth.search.selection import check_most, count_by_kind, outermost
from prunerecover.families.describe import describe
from prunerecover.importance.context import DepthContext
from prunerecover.model.arguments import check_patterns
from prunerecover.plan.budget import Budget
from prunerecover.plan.kinds import FAMILY_KINDS, TRAITS
from prunerecover.plan.units import Unit
from prunerecover.session.session import Session
from prunerecover.sites.find import find_units


class FamilyPlanner(DepthPlanner):
    """Plans for a model of a supported family; see `DepthPlanner`."""

    usual_search, by_parts = "greedy", True

    def __init__(
        self, session: Session, kinds: Sequence[str] = FAMILY_KINDS, config: DepthConfig | None = None
    ) -> None:
        super().__init__(session, kinds, config or DepthConfig())

    def _check(self) -> None:
        check_blocks_apart(self.model)
        describe(self.model)  # a model of no supported family is explained before it is called

    def _prepare(self) -> None:
        found = find_units(self.model, self.example, [kind for kind in FAMILY_KINDS if kind in self.kinds])
        if self.config.ignore:
            check_patterns(self.config.ignore, [unit.name for unit in find_units(self.model)], "units")
        self.units = not_ignored(found, self.config.ignore)
        how = self.config.replace, self.config.seed
        self.calibrator = KeptCalibrator(self.store, self.model, self.samples, self.units, *how)
        self._sets = CalibratedSets(self.calibrator, refit=self.search == "exact" and self.calibrator.fits)
        self._saved: dict[tuple[str, float | None, tuple[tuple[object, ...], ...]], float] = {}

    def _ranked(self) -> dict[str, float]:
        context = DepthContext(
            model=self.model,
            units=self.units,
            batches=tuple(self.session.batches),
            loss=self.session.loss,
            replace=self.config.replace,
            seed=self.config.seed,
            shared_calibrator=self.calibrator,
        )
        return numbers(self.config.registered(context))

    def _decide(self, budget: Budget, units: Sequence[Unit]) -> Decision:
        return self._decided_by(self._searched, budget, units)

    def _decide_part(self, budget: Budget, units: Sequence[Unit]) -> Decision:
        return self._decided_by(self._searched_once, budget, units)

    def _decided_by(self, search: Callable[[Goal], Searched], budget: Budget, units: Sequence[Unit]) -> Decision:
        units = [unit for unit in units if unit.kind in budget.kinds(FAMILY_KINDS)]
        if self.search == "one_shot":
            scores = self.rank()
            dense = self.session.cost(budget.share[0]) if budget.share else None
            choices = one_shot(self.calibrator, units, scores, budget, self.config.registered, dense)
            ranked = sorted((choice.unit for choice in choices), key=lambda unit: scores[unit.name])
            return self._decided(scores, self.calibrator.finished(choices), ranked)
        if budget.share is not None:
            cost, share = budget.share
            check_most(units, cost, share, self._saver(cost), len(describe(self.model).blocks) - 1)
        if self.search == "run":
            first, chosen = self._one_run(self._goal(units, budget, self._saved_together))
        elif budget.latency is not None:
            first, chosen = self._searched_for_latency(search, units, budget.shares["latency"])
        else:
            first, chosen = search(self._goal(units, budget, self._saved_together))
        return self._decided(first, self._sets.finished(chosen), chosen)

    def _searched(self, goal: Goal) -> Searched:
        """Return the best of all sets that several ways to search find."""
        if not isinstance(goal, Share):
            return self._searched_once(goal)
        found = JointSearch(self._sets, goal, self.search, self._known)
        sets = [found.run()]
        sets += self._of_fewer_kinds(goal, sets[0])
        sets += self._of_same_counts(goal, found.cheapest(sets).units)
        return self._best_of(found, sets, goal)

    def _searched_once(self, goal: Goal) -> Searched:
        """Return the set that one search finds, or a run of blocks that is better."""
        found = JointSearch(self._sets, goal, self.search, self._known)
        return self._best_of(found, [found.run()], goal)

    def _best_of(self, found: JointSearch, sets: list[Move], goal: Goal) -> Searched:
        sets += self._runs(goal, found.first)
        return found.first, found.best_of(sets, self._sets.tune, self._sets.leave_maps)

    def _searched_for_latency(
        self, search: Callable[[Goal], Searched], units: Sequence[Unit], wanted: float
    ) -> Searched:
        """Return the best set by estimated shares of the latency; what it saves is measured."""
        kinds = [unit.kind for unit in units]
        shares = LatencyShares(kinds, self._half_of, lambda own: self._saved_together(own, "macs", 1), self.store)
        return searched_for_latency(
            Share(units, wanted, shares.of, most_blocks=len(describe(self.model).blocks) - 1),
            shares,
            search,
            lambda found: self._saved_together(found[1], "latency", wanted),
        )

    def _of_fewer_kinds(self, goal: Share, found: Move) -> list[Move]:
        """Return the sets found without units that hold others, and all of these without activations, too.

        An activation looks cheap while it is judged alone, and where it has gone, its MLP cannot.

        Args:
            goal: A share of a cost.
            found: The set found with all units.
        """
        sets = self._finer(goal, found)
        if any(unit.kind == "activation" for one in (found, *sets) for unit in one):
            goal = replace(goal, units=[unit for unit in goal.units if unit.kind != "activation"])
            if whole := self._set_for(goal):
                sets += [whole, *self._finer(goal, whole)]
        return sets

    def _finer(self, goal: Share, found: Move) -> list[Move]:
        """Return the sets found without the units that hold most others, then without those that hold fewer.

        A unit that holds others saves much at once, and looks cheap while it is judged alone; smaller units that save
        as much together may change the output less. Where none of those that hold most went, there is no need to search
        without them.

        Args:
            goal: A share of a cost.
            found: The set found with all its units.
        """
        sets = []
        while most := max(map(_holds, goal.units), default=0):
            goal = replace(goal, units=[unit for unit in goal.units if _holds(unit) < most])
            if goal.reached(outermost(goal.units)) < 1:
                break
            if max(map(_holds, found), default=0) < most:
                continue
            if not (found := self._set_for(goal)):
                break
            sets.append(found)
        return sets

    def _set_for(self, goal: Share) -> Move:
        """Return the set found for a goal; an empty one where what the units leave holds too much of the cost."""
        try:
            return JointSearch(self._sets, goal, self.search, self._known).run()
        except ValueError:
            return ()

    def _of_same_counts(self, goal: Share, chosen: Sequence[Unit]) -> list[tuple[Unit, ...]]:
        """Return the set found if as many units of each kind have to go, if it meets the goal.

        Counted in units, a small one that changes little is not passed over for one that saves more.

        Args:
            goal: A share of a cost.
            chosen: The best set by shares.
        """
        counted = Counted(goal.units, count_by_kind(chosen))
        found = JointSearch(self._sets, counted, self.search, self._known).run()
        return [found] if goal.reached(found) >= 1 else []

    def _runs(self, goal: Goal, first: Mapping[str, float]) -> list[Move]:
        """Return contiguous runs of blocks that meet a goal, if a map can stand for a whole run.

        With it the output may change less than what units that are judged one by one suggest.

        Args:
            goal: How much has to go.
            first: Divergence of each unit alone.
        """
        runs = runs_for(goal, self.calibrator, first) if self.calibrator.fits else []
        return [run for run in runs if len(run) > 1]

    def _one_run(self, goal: Goal) -> Searched:
        """Return the run of blocks whose ends are most alike, or that changes the output least of a few such runs."""
        scores, name = self.rank(), self.config.registered.name
        if goal.reached(()) >= 1:
            return scores, ()
        batches = self.samples.all_samples
        distances = angles_at_the_end if name == "angular_distance" else cosine_distances
        sets = runs_for(goal, self.calibrator, scores, first=0, batches=batches, distances=distances)
        if not sets:
            raise not_enough(goal, (), "No run of blocks that may go is long enough. ")
        if name != "output_divergence":
            return scores, sets[0]
        found = JointSearch(self._sets, goal, known=self._known)
        return scores, found.best_of(sets, self._sets.tune, self._sets.leave_maps)

    def _decided(self, scores: dict[str, float], choices: Sequence[Choice], order: Sequence[Unit]) -> Decision:
        edits, tensors = edits_of(self.model, ((choice.unit, choice.candidate) for choice in choices))
        divergence = {choice.unit.name: choice.divergence for choice in choices}
        return Decision(edits, scores, divergence, order, tensors)

    def _saved_together(self, units: Sequence[Unit], cost: str, wanted: float) -> float:
        """Return the share of a cost that goes with units, less what they leave; see `DenseCost.removed_share`.

        No clock tells blocks of one size apart: latency is measured once for as many units of each kind and size.
        """
        leaves = self._sets.leaves_of(units)
        left = {unit: cost_left(unit, leaves) for unit in units}
        timed = cost == "latency"
        alike = sorted((u.kind, u.params, u.macs, what) if timed else (u.name, what) for u, what in left.items())
        key = cost, wanted if timed else None, tuple(alike)
        if key not in self._saved:
            named = {unit.name: what for unit, what in left.items()}
            self._saved[key] = saving_if_left(self.session.cost(cost), named, wanted)(units)
        return self._saved[key]

    def _half_of(self, kind: str, cost: str) -> float:
        """Return the share of a cost that goes with half of the units of a kind; latency on few samples."""
        units = [unit for unit in self.units if unit.kind == kind][::2]
        dense = self.session.cost(cost)
        return saving_if_left(dense.on_few if cost == "latency" else dense, {})(units)

    def _saved_by_units(self, units: Sequence[Unit], cost: str, wanted: float | None = None) -> float:
        return saving_if_left(self.session.cost(cost), {}, wanted)(units)


def _holds(unit: Unit) -> int:
    """Return how many kinds of units are inside."""
    return len(TRAITS[unit.kind].holds)
