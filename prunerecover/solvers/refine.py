"""Refinement: variants scored again on top of a choice, and the program solved again near the choice.

Sites interact, and scores alone are only a start. While the held-out divergence falls, alternatives at each site are
fitted and scored behind the choice, and the program may change a few sites at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import isfinite

from prunerecover.display.progress import progress
from prunerecover.library.edits import Chosen as Fitted
from prunerecover.library.library import Library
from prunerecover.library.variants import DENSE
from prunerecover.library.walk import Moments
from prunerecover.refusal import Refusal
from prunerecover.solvers.program import Chosen, Option, Program
from prunerecover.solvers.scores import Scores

ROUNDS = 6
CHANGES = (10, 6, 4, 2)  # sites that may change at once: the first better choice is taken
NEAR = 4  # sizes beside the chosen one that may be taken, with replacements
VIEWS = ((0.7, 1.0), (0.4, 1.0), (0.1, 1.0), (0.4, 0.5))  # of options, more and more in their favour: tried in turn.
# The first number is the part of a guessed increase that an option may add in truth, the second the part of a measured
# increase, which is less where another site is given back.
BETTER = 1e-4  # of the divergence
TRIES = 6  # at a choice that really saves enough, of options that are all measured
LOOKS = 24  # at nearby choices: each measures the guessed options of the one before
MISSED, OVER = 0.001, 0.01  # of a cost: how much a choice may save less, and more
Measure = Callable[[Mapping[str, str], bool], Mapping[str, float]]


@dataclass(frozen=True, eq=False)
class State:
    """Choice, fitted in order when needed.

    Attributes:
        library: Library of the variants.
        names: Names of variants, by site.
    """

    library: Library
    names: Mapping[str, str]

    @cached_property
    def _walk(self) -> tuple[Fitted, Moments]:
        return self.library.walks.walk(self.library.chosen(self.names))

    @property
    def chosen(self) -> Fitted:
        """Variants with their fits."""
        return self._walk[0]

    @property
    def moments(self) -> Moments:
        """Moments of every station, behind the choice of the stations before."""
        return self._walk[1]

    @cached_property
    def divergence(self) -> float:
        """Divergence of the output on held-out samples; every rank fits, and continues with its own fit."""

        def judge(_: int) -> float:
            return self.library.scorer.divergence(self.chosen)

        return self.library.store.results("choice", [self.said], judge, everywhere=True)[0]

    @property
    def said(self) -> tuple[str, ...]:
        """Sites and names."""
        return tuple(part for pair in self.names.items() for part in pair)


class Refiner:
    """Solver of one budget over a library.

    Args:
        library: Library with scores.
        program: Program over the library's scores.
        need: Shares to remove, by cost.
        measure: Function `(names, clock) -> shares`, from names of variants to the shares of costs saved together, by
            cost; sites save less or more together than each alone. Clocks cannot tell near choices apart: clocks are
            read for the first choice alone, where `clock` is true. For missing costs, and without a function, the
            shares of the program count.
    """

    def __init__(
        self, library: Library, program: Program, need: Mapping[str, float], measure: Measure | None = None
    ) -> None:
        self.library, self.need, self.measure = library, dict(need), measure
        self.alone = Scores(program, library.known_scores(), library.measured)
        self._more = dict.fromkeys(need, 0.0)  # to ask of the program for each cost
        self._measured: dict[tuple[tuple[tuple[str, str], ...], bool], Mapping[str, float]] = {}

    def run(self, rounds: int = ROUNDS, start: State | None = None) -> State:
        """Return the choice of least divergence found, with enough saving in every cost.

        Args:
            rounds: Rounds of refinement at most.
            start: Refined choice for a similar need, as the start of the search.

        Raises:
            Refusal: If no choice saves enough, or the network fails without the variants together.
        """
        best = State(self.library, self._first()) if start is None else self._moved(start)
        with progress("refining the choice", rounds) as advance:
            for _ in range(rounds):
                found = self.better(best)
                advance()
                if found is None:
                    break
                best = found
        if not isfinite(best.divergence):
            raise Refusal(
                "variants whose networks run and give finite outputs of the dense shape",
                "with the variants of least score together the network fails",
                "Lower the budget, or ignore some of the sites.",
            )
        return best

    def better(self, best: State) -> State | None:
        """Return a nearby choice of less divergence; None if none is found."""
        scores, tried = scores_on_top(self.alone.program, best), [dict(best.names)]
        for (slack, discount), changes in product(VIEWS, CHANGES):
            scores.guesses, scores.discount = guesses_on_top(self.alone.program, best, slack), discount
            names = self._near(scores, best, changes)
            if names is None or names in tried:
                continue
            tried.append(names)
            found = State(self.library, names)
            if found.divergence < best.divergence * (1 - BETTER):
                return found
        return None

    def _moved(self, start: State) -> State:
        """Return the choice of least score near an earlier choice, or far away if none nearby saves enough."""
        names = self._near(scores_on_top(self.alone.program, start), start, CHANGES[0])
        return State(self.library, self._first() if names is None else names)

    def _first(self) -> Chosen:
        """Return the choice of least score with enough measured saving, solving again if sites save less together."""
        found = self._solved(self.alone)
        nearest = found, self._correct(found, first=True)
        for _ in range(TRIES):
            again = self.alone.measured(found)
            if not again and -MISSED <= nearest[1] <= OVER:
                break
            try:
                found = self._solved(self.alone)
            except ValueError:  # no more can go
                break
            over = self._correct(found, first=True)
            if _as_near(over, nearest[1]):
                nearest = found, over
        return nearest[0]

    def _near(self, scores: Scores, best: State, changes: int) -> Chosen | None:
        """Return the best nearby choice with enough measured saving; None without one."""
        found: Chosen | None = None
        for _ in range(LOOKS):
            names = self._solved(scores, best, changes)
            if self._correct(names) >= -MISSED:
                found = names
                if not scores.measured(names):
                    break
        return found

    def _solved(self, scores: Scores, best: State | None = None, changes: int = 0) -> Chosen:
        """Return a program's solution, perhaps near an earlier choice; all ranks take the first rank's solution."""
        asked = {cost: share + self._more[cost] for cost, share in self.need.items()}
        near = None if best is None else (dict(best.names), changes)
        names, program = [repr(asked), *(best.said if best else ()), str(changes), scores.said], scores.program
        return self.library.store.results("solution", [names], lambda _: program.solve(asked, near), everywhere=True)[0]

    def _correct(self, names: Chosen, *, first: bool = False) -> float:
        """Correct the needs by the measured saving of a choice; return the excess over the least met need."""
        program = self.alone.program
        counted = {cost: program.saved(names, cost) for cost in self.need}
        measured = self._savings(names, first)
        self._more |= {cost: counted[cost] - saved for cost, saved in measured.items()}
        return min(counted[cost] - self._more[cost] - share for cost, share in self.need.items())

    def _savings(self, names: Chosen, first: bool) -> Mapping[str, float]:
        """Return the measured savings of a choice, each measured once."""
        said = (tuple(sorted(names.items())), first)
        if said not in self._measured:
            self._measured[said] = {} if self.measure is None else self.measure(names, first)
        return self._measured[said]


def _as_near(over: float, other: float) -> bool:
    """Whether an excess over the need is at least as near as a second excess; a point more counts as near."""
    return (over >= -MISSED, -max(abs(over), OVER)) >= (other >= -MISSED, -max(abs(other), OVER))


def scores_on_top(program: Program, state: State) -> Scores:
    """Return the scores of options on top of a choice, each measured when it is first taken.

    Args:
        program: Program with scores of options alone.
        state: Choice.
    """
    library, judge = state.library, _Judge(state)
    inside = {inner for outer, inner in program.holds if state.names[outer] != DENSE}  # nothing there is computed

    def measure(asked: Sequence[tuple[str, str]]) -> list[float]:
        names = [(*state.said, site, name) for site, name in asked]
        with progress("scoring variants again", len(asked)) as advance:
            found = library.store.results("alternative", names, lambda n: judge.divergence(*asked[n]), advance)
        return [score - state.divergence for score in found]

    known = {
        site: {o.name: o.score for o in own} if site in inside else {state.names[site]: 0.0}
        for site, own in program.options.items()
    }
    return Scores(program, known, measure, guesses_on_top(program, state, VIEWS[0][0]))


def guesses_on_top(program: Program, state: State, slack: float) -> dict[str, dict[str, float]]:
    """Return guessed scores of options on top of a choice, in favour of the options; none of those far from it.

    An option adds about its score alone, less that of the chosen option, times the divergence of the choice over the
    sum of its scores alone: sites cost more together.

    Args:
        program: Program with scores of options alone.
        state: Choice.
        slack: Part of a guessed increase that an option may add in truth, and inverse of what a decrease may be.
    """
    alone, found = program.score(state.names), dict[str, dict[str, float]]()
    together = state.divergence / alone if alone > 0 and isfinite(state.divergence) else 1.0
    for site, own in program.options.items():
        here = [option.name for option in own].index(state.names[site])
        more = {n: together * (own[n].score - own[here].score) for n in _near_by(own, here)}
        found[site] = {own[n].name: value * slack if value > 0 else value / slack for n, value in more.items()}
    return found


class _Judge:
    """Judge of choices with a difference to a base choice at a single site.

    Args:
        state: Base choice.
    """

    def __init__(self, state: State) -> None:
        self._state = state

    @cached_property
    def _base(self) -> State:
        """Base choice, once it is stored in the scorer."""
        self._state.library.scorer.rebase(self._state.chosen)
        return self._state

    def divergence(self, site: str, name: str) -> float:
        """Return the divergence with a new variant at a site."""
        base = self._base
        return base.library.scorer.divergence(base.library.changed(base.chosen, site, name, base.moments))


def _near_by(options: Sequence[Option], here: int) -> list[int]:
    """Return the numbers of the options that may be taken: sizes near the chosen one, and replacements."""
    sizes = [number for number, option in enumerate(options) if not option.gone]
    at = here if here in sizes else max(sizes)
    near = [n for n in sizes if abs(n - at) <= (NEAR if here in sizes else 0)]
    return [n for n in (*near, *(n for n, option in enumerate(options) if option.gone)) if n != here]
