"""Joint search for the set of removed units with the least divergence that meets a goal.

A beam of sets grows by single moves: by the unit, or the layers of a module, with the least divergence per part of the
goal, on top of the removed units. Then come exchanges: a chosen unit stays, and the best move in its place goes. Some
units must go together (a thesis on fine-grained depth pruning, Delft 2025, found layers whose removal alone ruins a
network and in company does not), so importance is never taken as known once and for all. The greedy search has a
single set in the beam, and no exchanges.

Only moves likely among the best are judged again (lazy greedy, Minoux 1978): a unit hardly ever matters less after
further removals, so an earlier divergence bounds the present divergence from below.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from prunerecover.depth.search.goals import Goal, not_enough
from prunerecover.depth.search.judge import Judge, Move
from prunerecover.depth.search.moves import holders, of_one_module
from prunerecover.depth.search.steps import State, Step
from prunerecover.display.progress import progress

WIDTH = 2  # sets in the beam
EXCHANGED = 6  # moves that are tried in the place of a chosen unit
ROUNDS = 3  # of exchanges
SLACK = 0.7  # least true divergence of a move, as a share of the rough score


@dataclass
class JointSearch:
    """Search for the units to remove.

    Attributes:
        judge: Judge of sets of units.
        goal: Amount to remove.
        search: "joint"; "greedy", by which a single set grows unit by unit without exchanges; or "exact", a greedy
            search that judges every unit anew at each step.
        known: Known divergences of units alone, by name, not judged again; of all units, or none.
        first: Divergence of each unit alone, by name, once the search has begun: on all samples for units among the
            best, else on a part of the samples; infinite for units that cannot go.
    """

    judge: Judge
    goal: Goal
    search: str = "joint"
    known: Mapping[str, float] = field(default_factory=dict)
    first: dict[str, float] = field(default_factory=dict)
    _slopes: dict[Move, float] = field(default_factory=dict)
    _rough: set[Move] = field(default_factory=set)

    def run(self) -> Move:
        """Return the removed units, in order of choice.

        Raises:
            ValueError: If the goal cannot be met.
        """
        best = State(reached=self.goal.reached(()))
        with progress("removing one unit after the other", self.goal.total) as advance:
            self._score_alone()
            while best.reached < 1:
                best = self._grown(best, advance)
            while (less := self._without_needless(best)).units != best.units:
                best = less
        return best.units

    def _grown(self, start: State, advance: Callable[[], None]) -> State:
        """Return the best set found that meets the goal and holds the units of the start.

        Args:
            start: Units removed already.
            advance: Function called for each unit.

        Raises:
            ValueError: If no set meets the goal.
        """
        states, done, best = [start], list[State](), State(divergence=math.inf)
        while states := [state for state in states if state.reached < 1 and state.divergence < best.cost]:
            steps = self._best_steps(states)
            if not steps and not done:
                states = [self._with_a_holder(states[0])]
            else:
                states = [self._state((*step.state.units, *step.move)) for step in steps]
            done += [self._without_needless(state) for state in states if state.reached >= 1]
            best = min(done, key=lambda state: state.cost, default=best)
            for _ in steps[0].move if steps else ():
                advance()
        for _ in range(ROUNDS if self.search == "joint" else 0):
            better = self._exchanged(best)
            if better is best:
                break
            best = better
        return best

    @property
    def width(self) -> int:
        """Sets in the beam."""
        return WIDTH if self.search == "joint" else 1

    def _score_alone(self) -> None:
        """Judge all removable units on the dense network, roughly: likely best moves are judged again."""
        units = self.goal.units_to_score()
        moves: list[Move] = [(unit,) for unit in units]
        if self.search == "joint":
            moves += list(of_one_module(units))
        known = {(unit,): self.known[unit.name] for unit in units if unit.name in self.known}
        new = [move for move in moves if move not in known]
        scores = self.judge.scores((), new) if self.search == "exact" else self.judge.rough(new)
        self._rough |= set(new)
        for move, divergence in (*known.items(), *zip(new, scores, strict=True)):
            self._slopes[move] = self._slope(State(), move, divergence)
            if len(move) == 1:
                self.first[move[0].name] = divergence

    def _slope(self, state: State, move: Move, divergence: float) -> float:
        price = min(self.goal.price(move), state.missing)
        return max(divergence - state.divergence, 0.0) / price if price > 0 else math.inf

    def _best_steps(self, states: Sequence[State]) -> list[Step]:
        """Return the best steps to different sets: as many as the beam holds, and a step that meets the goal."""
        found: dict[frozenset[str], tuple[float, float, Step]] = {}
        for state in states:
            waiting = sorted(self._open(state), key=self._at_best)
            while waiting and (self.search == "exact" or self._at_best(waiting[0]) <= self._limit(found)):
                at_once = len(waiting) if self.search == "exact" else 1
                together, waiting = waiting[:at_once], waiting[at_once:]
                scores = self.judge.scores(state.units, [step.move for step in together])
                for step, divergence in zip(together, scores, strict=True):
                    self._rough.discard(step.move)
                    if len((*state.units, *step.move)) == 1:
                        self.first[step.move[0].name] = divergence
                    slope = self._slope(state, step.move, divergence)
                    if math.isfinite(slope):
                        self._slopes[step.move] = slope
                        step = replace(step, slope=slope)
                        found.setdefault(step.names, (step.projected, divergence, step))
        ranked = [step for *_, step in sorted(found.values(), key=lambda entry: entry[:2])]
        enough = [step for step in ranked[self.width :] if step.price >= step.state.missing]
        return [*ranked[: self.width], *enough[: self.width - 1]]

    def _at_best(self, step: Step) -> float:
        """Return the least possible cost of a step, by present knowledge."""
        return step.projected * (SLACK if step.move in self._rough else 1.0)

    def _limit(self, found: dict[frozenset[str], tuple[float, float, Step]]) -> float:
        """Return the largest projected divergence of the best steps."""
        best = sorted(projected for projected, *_ in found.values())[: self.width]
        return best[-1] if len(best) == self.width else math.inf

    def _open(self, state: State) -> Iterator[Step]:
        """Yield the remaining moves of a state, with the divergences of the last judgement."""
        free = {unit.name for unit in self.goal.open(state.units)}
        for move, slope in self._slopes.items():
            if math.isfinite(slope) and all(unit.name in free for unit in move) and self.goal.fits(state.units, move):
                yield Step(state, move, slope, self.goal.price(move))

    def _with_a_holder(self, state: State) -> State:
        """Remove a unit in the place of the units inside; raise ValueError if no such exchange saves more."""
        sets = holders(self.goal, state.units)
        scores = [self.judge.scores(units[:-1], [units[-1:]])[0] for units in sets]
        found = [State(units, d, self.goal.reached(units)) for units, d in zip(sets, scores, strict=True)]
        more = [one for one in found if one.reached > state.reached and math.isfinite(one.divergence)]
        if not more:
            raise not_enough(self.goal, state.units, self.judge.refused)
        return min(more, key=lambda one: one.cost)

    def _state(self, units: Move) -> State:
        return State(units, self.judge.divergence(units), self.goal.reached(units))

    def _without_needless(self, state: State) -> State:
        """Give back units not needed to meet the goal, the costliest first."""
        while True:
            beyond = state.reached - 1
            spare = [
                rest
                for i, unit in enumerate(state.units)
                if self.goal.price((unit,)) <= 2 * beyond  # about: units save less together than alone
                and self.goal.reached(rest := (*state.units[:i], *state.units[i + 1 :])) >= 1
            ]
            scores = [self.judge.scores(rest[:-1], [rest[-1:]])[0] for rest in spare]
            if not any(map(math.isfinite, scores)):
                return state
            state = self._state(spare[scores.index(min(scores))])

    def _exchanged(self, best: State) -> State:
        """Try other moves in the place of each unit, the costliest first, and keep improvements."""
        for unit in sorted(best.units, key=lambda own: -self._slopes.get((own,), 0.0)):
            if unit not in best.units:  # it was exchanged
                continue
            others = tuple(own for own in best.units if own is not unit)
            rest = State(others, reached=self.goal.reached(others))
            steps = sorted(self._open(rest), key=lambda step: step.projected)
            enough = (
                step
                for step in steps
                if step.move != (unit,)
                and step.price > 0.8 * rest.missing  # about: nearly enough may be enough
                and self.goal.reached((*rest.units, *step.move)) >= 1
            )
            tried = [step.move for step, _ in zip(enough, range(EXCHANGED), strict=False)]
            scores = self.judge.scores(rest.units, tried) if tried else []
            sets = [(*rest.units, *move) for move in tried]
            found = [State(units, d, self.goal.reached(units)) for units, d in zip(sets, scores, strict=True)]
            better = min(found, key=lambda state: state.cost, default=best)
            if better.cost < best.cost:
                better = self._without_needless(self._state(better.units))
                best = better if better.cost < best.cost else best
        return best
