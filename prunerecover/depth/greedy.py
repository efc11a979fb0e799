"""Greedy search for the removed units: one unit after the other, by the divergence added per part of the goal.

Units interact (a thesis on fine-grained depth pruning, Delft 2025, found layers whose removal alone ruins a network and
in company does not), so each unit is judged on top of the removed units. Only units likely to be the best are judged
again (lazy greedy, Minoux 1978): a unit hardly ever matters less after further removals, so an earlier divergence
bounds the present divergence from below.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from prunerecover.depth.search.goals import Goal, conflicting, not_enough
from prunerecover.depth.variants import Variants
from prunerecover.display.progress import progress
from prunerecover.plan.units import Unit

SLACK = 0.7  # least true divergence of a unit, as a share of the rough score
SMALLEST = 1e-6  # of the missing part: a goal may be missed by less than any unit holds


@dataclass(frozen=True)
class State:
    """Removed units in order of choice, the divergence, and the part of the goal reached."""

    units: tuple[Unit, ...] = ()
    divergence: float = 0.0
    reached: float = 0.0

    @property
    def missing(self) -> float:
        """The missing part of the goal; a unit gains nothing beyond."""
        return max(1 - self.reached, SMALLEST)


@dataclass
class GreedySearch:
    """Search for the units to remove.

    Attributes:
        judge: Judge of sets of units.
        goal: Amount to remove.
        exact: Whether every unit is judged anew at each step.
        known: Known divergences of units alone, by name, not judged again; of all units, or none.
        first: Divergence of each unit alone, by name, once the search has begun: on all samples for units among the
            best, else on a part of the samples; infinite for units that cannot go.
    """

    judge: Variants
    goal: Goal
    exact: bool = False
    known: Mapping[str, float] = field(default_factory=dict)
    first: dict[str, float] = field(default_factory=dict)
    _slopes: dict[Unit, float] = field(default_factory=dict)
    _rough: set[Unit] = field(default_factory=set)

    def run(self) -> tuple[Unit, ...]:
        """Return the removed units, in order of choice.

        Raises:
            ValueError: If the goal cannot be met.
        """
        state = State(reached=self.goal.reached(()))
        with progress("removing one unit after the other", self.goal.total) as advance:
            self._score_alone()
            while state.reached < 1:
                state = self._with_the_best(state) or self._with_a_holder(state)
                advance()
            return self._without_needless(state).units

    def _score_alone(self) -> None:
        """Judge all removable units on the dense network, roughly: likely best units are judged again."""
        units = self.goal.units_to_score()
        new = [unit for unit in units if unit.name not in self.known]
        scores = self.judge.scores((), new) if self.exact else self.judge.rough(new)
        found = {**self.known, **{unit.name: score for unit, score in zip(new, scores, strict=True)}}
        self.first |= {unit.name: found[unit.name] for unit in units}
        self._slopes |= {unit: self._slope(State(), unit, found[unit.name]) for unit in units}
        self._rough |= set(new)

    def _slope(self, state: State, unit: Unit, divergence: float) -> float:
        """Return the divergence added by a unit per part of the goal."""
        price = min(self.goal.price((unit,)), state.missing)
        return max(divergence - state.divergence, 0.0) / price if price > 0 else math.inf

    def _projected(self, state: State, unit: Unit) -> float:
        """Return the divergence once the goal is met, at the slope of a unit for the rest of the goal.

        An excess over the goal is a needless loss, and increases the divergence in proportion.
        """
        beyond = max(self.goal.price((unit,)) - state.missing, 0.0)
        return (state.divergence + self._slopes[unit] * state.missing) * (1 + beyond)

    def _with_the_best(self, state: State) -> State | None:
        """Remove the unit of the least projected divergence; None if no unit can go."""
        able = [unit for unit in self.goal.open(state.units) if math.isfinite(self._slopes[unit])]
        bounds = {unit: self._projected(state, unit) * (SLACK if unit in self._rough else 1.0) for unit in able}
        best, least = None, (math.inf, math.inf)
        for unit in sorted(bounds, key=lambda one: bounds[one]):
            if bounds[unit] > least[0] and not self.exact:
                break
            (divergence,) = self.judge.scores(state.units, [unit])
            self._rough.discard(unit)
            if not state.units:
                self.first[unit.name] = divergence
            if math.isfinite(slope := self._slope(state, unit, divergence)):
                self._slopes[unit] = slope
                if (found := (self._projected(state, unit), divergence)) < least:
                    best, least = unit, found
        return None if best is None else self._judged((*state.units, best))

    def _with_a_holder(self, state: State) -> State:
        """Remove a unit in the place of the units inside; raise ValueError if no such unit saves more."""
        found = [self._judged(units) for units in _holders(self.goal, state.units)]
        more = [one for one in found if one.reached > state.reached and math.isfinite(one.divergence)]
        if not more:
            raise not_enough(self.goal, state.units, self.judge.refused)
        return min(more, key=lambda one: one.divergence * max(one.reached, 1.0))

    def _judged(self, units: tuple[Unit, ...]) -> State:
        return State(units, self.judge.scores(units[:-1], units[-1:])[0], self.goal.reached(units))

    def _without_needless(self, state: State) -> State:
        """Give back units not needed to meet the goal, the costliest first."""
        while True:
            beyond = state.reached - 1
            spare = [
                self._judged(rest)
                for i, unit in enumerate(state.units)
                if self.goal.price((unit,)) <= 2 * beyond  # about: units save less together than alone
                and self.goal.reached(rest := (*state.units[:i], *state.units[i + 1 :])) >= 1
            ]
            best = min(spare, key=lambda one: one.divergence, default=State(divergence=math.inf))
            if not math.isfinite(best.divergence):
                return state
            state = best


def _holders(goal: Goal, chosen: tuple[Unit, ...]) -> list[tuple[Unit, ...]]:
    """Return sets in which a unit, the last, goes in the place of chosen units inside, or with the same linears."""
    found = []
    for unit in goal.units_to_score():
        rest = tuple(own for own in chosen if own != unit and not conflicting(unit, own))
        if unit not in chosen and len(rest) < len(chosen) and unit in goal.open(rest):
            found.append((*rest, unit))
    return found
