"""Refinement: variants scored again on top of a choice, and the program solved again near the choice.

Sites interact, and scores alone are only a start. While the held-out divergence falls, alternatives at each site are
fitted and scored behind the choice, and the program may change a few sites at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil, isfinite
from statistics import mean

from prunerecover.display.progress import progress
from prunerecover.library.library import TINY, Library
from prunerecover.refusal import Refusal
from prunerecover.solvers.on_top import guesses_on_top, increases_on_top, scores_on_top
from prunerecover.solvers.program import Chosen, Program
from prunerecover.solvers.scores import Scores
from prunerecover.solvers.state import Nearby, State
from prunerecover.surgery.saved_cost import CLOCKS

ROUNDS = 5
CHANGES = (10, 6, 4, 2)  # sites that may change at once
SLACKS = (0.7, 0.4)  # parts of a guessed increase that an option may add in truth, tried in turn: see guesses_on_top
EASY, STEP = 0.25, 0.125  # shares: up to the first, scores alone are a good start; more goes step by step
MOVES, AGAIN = 2, 2  # to choices that save more, where the clock says too little; rounds at least of such a choice
BETTER, GAIN = 1e-4, 0.01  # of the divergence: what is taken, and what another round is worth
TRIES = 6  # at a choice that really saves enough, of options that are all measured
LOOKS = 24  # at nearby choices: each measures the guessed options of the one before
MISSED, OVER = 0.001, 0.01  # of a cost: how much a choice may save less, and more
READINGS = 4  # of the clock, averaged: a single reading, of a few pairs, differs by percents on a busy machine
Measure = Callable[[Mapping[str, str], bool], Mapping[str, float]]
Start = tuple[State, Mapping[str, float]]  # choice, and its savings once merged, by the final clock


class Refiner:
    """Solver of one budget over a library.

    Args:
        library: Library with scores.
        program: Program over the library's scores.
        need: Shares to remove, by cost.
        measure: Function `(names, clock) -> shares`, from names of variants to the shares of costs saved together, by
            cost; sites save less or more together than each alone. Clocks are read where `clock` is true, for first
            choices and after moves: near choices, clocks cannot tell apart. For missing costs, and without a function,
            the shares of the program count.
        met: Function called with each choice compared for the whole need, more than once perhaps.
    """

    def __init__(
        self,
        library: Library,
        program: Program,
        need: Mapping[str, float],
        measure: Measure | None = None,
        met: Callable[[State], None] = lambda _: None,
    ) -> None:
        self.library, self.need, self.measure = library, dict(need), measure
        self._whole, self._met = self.need, met
        self.alone = Scores(program, program.known(), library.measured)
        self._more = dict.fromkeys(need, 0.0)  # to ask of the program for each cost
        self._most: dict[str, float] = {}  # that can go of each cost
        self._rounds = 0  # so far, each on another part of the held-out samples
        self._before: tuple[State, Scores] | None = None  # latest choice, and scores on top
        self._measured: dict[tuple[tuple[tuple[str, str], ...], bool], Mapping[str, float]] = {}
        self._told = False  # whether a former choice was measured to the end: no rough clock is read then
        self._readings: list[float] = []  # latency that choices save by the clock, over the sum of their sites' savings

    def run(self, rounds: int = ROUNDS, start: Start | None = None) -> State:
        """Return the choice of least divergence found, with enough saving in every cost.

        Args:
            rounds: Rounds of refinement at most.
            start: Refined choice for a similar need, as the start of the search, and its savings once merged.

        Raises:
            Refusal: If no choice saves enough, or the network fails without the variants together.
        """
        best = None if start is None else start[0]
        if start is not None:
            self._note(start[0].names, False, start[1])
            self._told = True
        parts = self._parts() if start is None else [1.0]
        with progress("refining the choice", rounds) as advance:
            for part in parts:
                self.need = {cost: part * share for cost, share in self._whole.items()}
                best = State(self.library, self._first()) if best is None else self._moved(best)
                left, slacks = (1, SLACKS[:1]) if part < 1 else (rounds, SLACKS)
                best = self._refined(best, left, slacks, advance)
        assert best is not None, "there is a part"
        if not isfinite(best.divergence):
            raise Refusal(
                "variants whose networks run and give finite outputs of the dense shape",
                "with the variants of least score together the network fails",
                "Lower the budget, or ignore some of the sites.",
            )
        return best

    def _parts(self) -> list[float]:
        """Return parts of the need to choose for one after the other, up to the whole.

        What sites cost together shows where less goes: the choice for a part is a better start than scores alone.
        """
        most = max(self.need.values(), default=0.0)
        if self.alone.program.exact or most <= EASY:
            return [1.0]
        steps = ceil((most - EASY) / STEP)
        return [(EASY + step * (most - EASY) / steps) / most for step in range(steps)] + [1.0]

    def _refined(self, best: State, rounds: int, slacks: Sequence[float], advance: Callable[[], None]) -> State:
        """Return a choice refined for the present need, while the divergence falls; the clock is read before.

        Args:
            best: Choice to begin with.
            rounds: Rounds at most, and none again after a move if there is none.
            slacks: Slacks of guesses, tried in turn in each round while nothing better is found.
            advance: Function called after each round.
        """
        enough, moves, again, clock = None, MOVES, AGAIN if rounds else 0, True
        while True:
            short = self._correct(best.names, clock=clock) < -CLOCKS
            enough = enough if short else best
            if not (moves if short else rounds):
                return best if enough is None else enough
            clock = short
            if short:
                best, moves, rounds = self._moved(best), moves - 1, max(rounds, again)
            found = self.better(best, slacks) if rounds else None
            advance()
            settled = found is None or found.divergence > best.divergence * (1 - GAIN)
            rounds = 0 if settled else rounds - 1
            best = best if found is None else found

    def better(self, best: State, slacks: Sequence[float] = SLACKS) -> State | None:
        """Return a nearby choice of less divergence; None if none is found, or the network fails with this choice."""
        if not isfinite(best.divergence):
            return None
        self._rounds += 1
        program, nearby, tried = self.alone.program, Nearby(best, self._rounds), [dict(best.names)]
        scores = scores_on_top(program, nearby)
        expected = increases_on_top(program, best, self._before)
        self._before = best, scores
        for slack in slacks:
            scores.guesses = guesses_on_top(expected, slack)
            choices = list[Chosen]()
            for changes in CHANGES:
                names = self._near(scores, best, changes)
                if names is not None and names not in tried:
                    choices.append(names)
                    tried.append(names)
            state = State(self.library, nearby.best(choices)) if choices else best
            if self.need == self._whole:
                self._met(best)
                self._met(state)
            if state.divergence < best.divergence * (1 - BETTER) - TINY:
                return state
        return None

    def _moved(self, start: State) -> State:
        """Return the choice of least score near an earlier one; far away if none saves enough, or the network fails."""
        if not isfinite(start.divergence):
            return State(self.library, self._first())
        self._correct(start.names, clock=True)  # read once for each choice
        scores = scores_on_top(self.alone.program, Nearby(start))
        scores.guesses = guesses_on_top(increases_on_top(self.alone.program, start, self._before), SLACKS[0])
        names = self._near(scores, start, CHANGES[0])
        return State(self.library, self._first() if names is None else names)

    def _first(self) -> Chosen:
        """Return the choice of least score with enough measured saving, solving again if sites save less together."""
        found = self._solved(self.alone)
        nearest = found, self._correct(found, clock=True)
        for _ in range(TRIES):
            again, near, before = self.alone.measured(found), -MISSED <= nearest[1] <= OVER, found
            if not again and near:
                break
            try:
                found = self._solved(self.alone)
            except ValueError:  # no more can go
                break
            if not again and found == before:
                break
            over = self._correct(found, clock=not near)
            if _as_near(over, nearest[1]):
                nearest = found, over
        return nearest[0]

    def _near(self, scores: Scores, best: State, changes: int) -> Chosen | None:
        """Return the best nearby choice with enough measured saving; None without one."""
        found, before = None, None
        for _ in range(LOOKS):
            names = self._solved(scores, best, changes)
            if names == before:
                break
            if self._correct(names) >= -MISSED:
                found = names
                if not scores.measured(names):
                    break
            before = names
        return found

    def _solved(self, scores: Scores, best: State | None = None, changes: int = 0) -> Chosen:
        """Return a program's solution, perhaps near an earlier choice; all ranks take the first rank's solution."""
        asked = {cost: share + self._more[cost] for cost, share in self.need.items()}
        near = None if best is None else (dict(best.names), changes)
        names, program = [repr(asked), *(best.said if best else ()), str(changes), scores.said], scores.program

        def solve(_: int) -> Chosen:
            return program.solve({cost: self._possible(cost, share) for cost, share in asked.items()}, near)

        return self.library.store.results("solution", [names], solve, everywhere=True)[0]

    def _possible(self, cost: str, asked: float) -> float:
        """Return a corrected share, but no more than can go, unless as much is needed."""
        if asked <= self.need[cost]:
            return asked
        if cost not in self._most:
            self._most[cost] = self.alone.program.most(cost)
        return min(asked, max(self.need[cost], self._most[cost]))

    def _correct(self, names: Mapping[str, str], *, clock: bool = False) -> float:
        """Correct the needs by the measured saving of a choice; return the excess over the least met need."""
        program = self.alone.program
        counted = {cost: program.saved(names, cost) for cost in self.need}
        measured = self._savings(names, clock)
        self._more |= {cost: counted[cost] - saved for cost, saved in measured.items()}
        return min(counted[cost] - self._more[cost] - share for cost, share in self.need.items())

    def _savings(self, names: Mapping[str, str], clock: bool) -> Mapping[str, float]:
        """Return the measured savings of a choice, each measured once; of latency, by the latest readings together."""
        read = clock and not self._told
        said = tuple(sorted(names.items())), read
        if said not in self._measured:
            self._note(names, read, {} if self.measure is None else self.measure(names, read))
        found = self._measured[said]
        if not clock or not self._readings:
            return found
        counted = self.alone.program.saved(names, "latency")
        return {**found, "latency": counted * mean(self._readings[-READINGS:])}

    def _note(self, names: Mapping[str, str], clock: bool, saved: Mapping[str, float]) -> None:
        """Note the measured savings of a choice."""
        self._measured[tuple(sorted(names.items())), clock] = saved
        counted = self.alone.program.saved(names, "latency") if "latency" in saved else 0.0
        if counted > 0:
            self._readings.append(saved["latency"] / counted)


def _as_near(over: float, other: float) -> bool:
    """Whether an excess over the need is at least as near as a second excess; a point more counts as near."""
    return (over >= -MISSED, -max(abs(over), OVER)) >= (other >= -MISSED, -max(abs(other), OVER))
