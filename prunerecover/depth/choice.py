"""Choice of the removed units of depth, by a search."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from prunerecover.cost.met_share import Wanted, met_share
from prunerecover.depth.arguments import SET_SEARCHES, DepthConfig
from prunerecover.depth.greedy import GreedySearch
from prunerecover.depth.runs import angles_at_the_end, cosine_distances, runs_for
from prunerecover.depth.search.goals import Counted, Goal, Share, check_comparable, not_enough
from prunerecover.depth.unit_costs import UnitCosts
from prunerecover.depth.variants import Variants
from prunerecover.display.progress import progress
from prunerecover.families.describe import is_supported
from prunerecover.graph.block_lists import check_blocks_stay
from prunerecover.plan.budget import Budget
from prunerecover.plan.kinds import TRAITS
from prunerecover.plan.units import Unit
from prunerecover.session.session import Session
from prunerecover.surgery.saved_cost import CLOCKS

TINY = 1e-12  # a price that no unit has
Searched = tuple[dict[str, float], Sequence[Unit]]  # divergence or importance of each unit alone, and removed units


class Ranking(Protocol):
    """Importances of units."""

    def rank(self) -> dict[str, float]:
        """Return the importance of every unit of the dense network."""

    def rank_again(self, units: Sequence[Unit], gone: tuple[Unit, ...]) -> Mapping[str, float]:
        """Return the importances of units on the network without the removed units."""

    @property
    def known(self) -> Mapping[str, float]:
        """The divergence of every unit alone, if known."""


class Choice:
    """Choice of units for budgets of one network.

    Args:
        session: Network and samples.
        variants: Judge of sets of units.
        costs: Costs of sets of units.
        ranking: Importances of units.
        config: Arguments of planning.
        search: Name of the search.
    """

    def __init__(
        self,
        session: Session,
        variants: Variants,
        costs: UnitCosts,
        ranking: Ranking,
        config: DepthConfig,
        search: str,
    ) -> None:
        self.session, self.variants, self.costs, self.ranking = session, variants, costs, ranking
        self.config, self.search, self.removals = config, search, variants.removals

    def chosen(self, goal: Goal, budget: Budget) -> Searched:
        """Return the importances of units, and the removed units, in order.

        Args:
            goal: Goal of the budget.
            budget: Budget in units, or in a share of a cost.

        Raises:
            ValueError: If the goal cannot be met.
        """
        if isinstance(goal, Counted):
            check_blocks_stay(self.removals.block_lists, goal.units, goal.wanted.get("block", 0))
        if self.search in SET_SEARCHES:
            if isinstance(goal, Share) and budget.latency is not None:
                return self._for_latency(goal)
            return self._by_sets(goal)
        scores = self.ranking.rank()
        if self.search == "run":
            return scores, self._one_run(goal, scores)
        if self.search == "rounds":
            return scores, self._in_rounds(goal)
        units = goal.units_to_score()
        ranked = sorted((u for u in units if math.isfinite(scores[u.name])), key=lambda u: scores[u.name])
        if self.search == "two_to_one":
            return scores, self._in_turn([_no_attention, _is_attention, _no_attention], ranked, goal)
        if budget.share is not None:
            check_comparable(units, self.config.registered)
            ranked.sort(key=lambda unit: scores[unit.name] / max(goal.price((unit,)), TINY))
        return scores, self._in_turn([lambda _: True], ranked, goal)

    def _in_turn(self, pattern: Sequence[Callable[[Unit], bool]], ranked: Sequence[Unit], goal: Goal) -> list[Unit]:
        """Take ranked units in turn; each set is tried by a run if the network fails without the final set."""
        chosen = _in_turn(pattern, ranked, goal, self.removals.why_not)
        if not self.removals.why_not(chosen, run=True):
            return chosen
        return _in_turn(pattern, ranked, goal, partial(self.removals.why_not, run=True))

    def _by_sets(self, goal: Goal) -> Searched:
        """Return the set that the search finds; for a share in a supported family, the best of several."""
        found = self._greedy(goal)
        chosen = found.run()
        if not isinstance(goal, Share) or not is_supported(self.session.model):
            return found.first, chosen
        sets = [chosen, *self._finer(goal, chosen)]
        if any(unit.kind == "activation" for own in sets for unit in own):
            goal = replace(goal, units=[unit for unit in goal.units if unit.kind != "activation"])
            if whole := self._set_for(goal):
                sets += [whole, *self._finer(goal, whole)]
        return found.first, min(sets, key=lambda own: self.variants.divergence(own) * max(goal.reached(own), 1.0))

    def _finer(self, goal: Share, found: Sequence[Unit]) -> list[Sequence[Unit]]:
        """Return the sets found without the largest containers of units, then without smaller containers.

        A container saves much at once, and looks cheap when judged alone; smaller units that save as much together may
        change the output less.

        Args:
            goal: Share of a cost.
            found: Set found with all units.
        """
        sets = []
        while most := max(map(_holds, goal.units), default=0):
            goal = replace(goal, units=[unit for unit in goal.units if _holds(unit) < most])
            if max(map(_holds, found), default=0) < most:
                continue
            if not (found := self._set_for(goal)):
                break
            sets.append(found)
        return sets

    def _set_for(self, goal: Share) -> Sequence[Unit]:
        """Return the set found for a goal; empty where the goal cannot be met."""
        try:
            return self._greedy(goal).run()
        except ValueError:
            return ()

    def _greedy(self, goal: Goal) -> GreedySearch:
        return GreedySearch(self.variants, goal, self.search == "exact", self.ranking.known)

    def _for_latency(self, goal: Share) -> Searched:
        """Return the best set by estimated shares of the latency; the saving of the set is measured.

        If the set misses the goal, the search is repeated with a corrected share.
        """
        costs, store = self.costs, self.variants.store

        def searched(asked: Mapping[str, float]) -> Searched:
            return self._by_sets(replace(goal, share=asked["latency"], saved=costs.estimated_latency, alone=None))

        def measured(found: Searched) -> dict[str, float]:
            clock = partial(costs.saved, found[1], "latency", goal.share)
            return {"latency": store.result("latency", (), clock)}

        smallest = min((share for unit in goal.units if (share := costs.estimated_latency([unit])) > 0), default=0.0)
        return met_share({"latency": Wanted(goal.share, above=smallest + CLOCKS)}, searched, measured)[0]

    def _in_rounds(self, goal: Goal) -> list[Unit]:
        """Score the units anew on the pruned network, and remove the lowest, in turn."""
        chosen: list[Unit] = []
        with progress("removing one unit after the other", goal.total) as advance:
            while goal.reached(chosen) < 1:
                left = [unit for unit in goal.open(chosen) if goal.price((unit,)) > 0]
                found = self.ranking.rank_again(left, tuple(chosen))
                able = [unit for unit in left if math.isfinite(found[unit.name])]
                if not able:
                    raise not_enough(goal, chosen, self.variants.refused)
                chosen.append(min(able, key=lambda unit: found[unit.name] / goal.price((unit,))))
                advance()
        return chosen

    def _one_run(self, goal: Goal, scores: Mapping[str, float]) -> Sequence[Unit]:
        """Return the run of blocks with the most similar ends, or, of a few such runs, the least output divergence."""
        if goal.reached(()) >= 1:
            return ()
        name, batches = self.config.registered.name, self.session.samples.all_samples
        distances = angles_at_the_end if name == "angular_distance" else cosine_distances
        sets = runs_for(goal, self.session.model, scores, batches, distances)
        if not sets:
            raise not_enough(goal, (), "No run of blocks that may go is long enough. ")
        return min(sets, key=self.variants.divergence) if name == "output_divergence" else sets[0]


def _in_turn(
    pattern: Sequence[Callable[[Unit], bool]],
    ranked: Sequence[Unit],
    goal: Goal,
    why_not: Callable[[Sequence[Unit]], str],
) -> list[Unit]:
    """Take units in turn until the goal is met, passing over units that cannot go with the chosen units.

    Args:
        pattern: Conditions of units, by place.
        ranked: Units, the least important first.
        goal: Amount to remove.
        why_not: Function that returns why units cannot go together; empty if removable.

    Raises:
        ValueError: If the goal cannot be met.
    """
    chosen, reason = list[Unit](), ""
    while goal.reached(chosen) < 1:
        before = len(chosen)
        for takes in pattern:
            if goal.reached(chosen) >= 1:
                break
            open_ = [unit for unit in goal.open(chosen) if goal.price((unit,)) > 0]
            for unit in (unit for unit in ranked if unit in open_ and takes(unit)):
                refused = why_not([*chosen, unit])
                if not refused:
                    chosen.append(unit)
                    break
                reason = f"{refused} "
        if len(chosen) == before:
            raise not_enough(goal, chosen, reason)
    return chosen


def _holds(unit: Unit) -> int:
    """Return the number of kinds of units inside."""
    return len(TRAITS[unit.kind].holds)


def _is_attention(unit: Unit) -> bool:
    return unit.kind == "attention"


def _no_attention(unit: Unit) -> bool:
    return unit.kind != "attention"
