"""Refinement: variants scored again on top of what was chosen, and the program solved again near it.

Sites interact, so that scores alone are a start. While the held-out divergence falls, alternatives at each site are
fitted and scored behind the choice, and the program may change a few sites at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from prunerecover.display.progress import progress
from prunerecover.library.edits import Chosen as Fitted
from prunerecover.library.library import Library
from prunerecover.library.moments import StationMoments
from prunerecover.library.variants import DENSE
from prunerecover.solvers.program import Chosen, Option, Program

ROUNDS = 3
CHANGES = (10, 6, 4, 2)  # sites that may change at once: the first that is better is taken
NEAR = 4  # sizes beside the chosen one that may be taken, with replacements; the outer ones are scored
BETTER = 1e-4  # of the divergence
TRIES = 4  # at a choice that really saves enough
MISSED, OVER = 0.001, 0.01  # of a cost: what a choice may save less, and more
Measure = Callable[[Mapping[str, str]], Mapping[str, float]]


@dataclass(frozen=True)
class State:
    """A choice, fitted in order.

    Attributes:
        names: Names of variants, by site.
        chosen: Variants with what is fitted.
        moments: Of every station, behind the choice of the stations before.
        divergence: Of the output on held-out samples.
    """

    names: Mapping[str, str]
    chosen: Fitted
    moments: Mapping[str, StationMoments]
    divergence: float


class Refiner:
    """Solves one budget over a library.

    Args:
        library: Scored.
        program: Over the library's scores.
        need: Shares that have to go, by cost.
        measure: Returns the shares that really go with variants of these names, by cost; sites save less or more
            together than each alone. Of costs that it leaves out, the program's own shares are taken.
    """

    def __init__(
        self, library: Library, program: Program, need: Mapping[str, float], measure: Measure | None = None
    ) -> None:
        self.library, self.program, self.need, self.measure = library, program, dict(need), measure
        self._more = dict.fromkeys(need, 0.0)  # to ask of the program for each cost

    def run(self, rounds: int = ROUNDS, start: State | None = None) -> State:
        """Return the choice of least divergence that is found to save enough of every cost.

        Args:
            rounds: Rounds of refinement at most.
            start: Choice for about the same need, refined: one like it is looked for.

        Raises:
            Refusal: If no choice saves as much.
        """
        best = fitted(self.library, self._first()) if start is None else self._moved(start)
        with progress("refining the choice", rounds) as advance:
            for _ in range(rounds):
                found = self.better(best)
                advance()
                if found is None:
                    break
                best = found
        return best

    def better(self, best: State) -> State | None:
        """Return a choice near another one whose divergence is less; None if none is found."""
        again, tried = rescored(self.library, self.program, best), [dict(best.names)]
        for changes in CHANGES:
            names = self._near(again, best, changes)
            if names is None or names in tried:
                continue
            tried.append(names)
            found = fitted(self.library, names)
            if found.divergence < best.divergence * (1 - BETTER):
                return found
        return None

    def _moved(self, start: State) -> State:
        """Return the choice of least score near another one that saves enough, or of all if none does."""
        again = rescored(self.library, self.program, start)
        names = self._near(again, start, CHANGES[0])
        return fitted(self.library, self._first() if names is None else names)

    def _first(self) -> Chosen:
        """Return the choice of least score that really saves enough, asked for again where sites save less together."""
        found = self.program.solve(self._asked())
        nearest = found, self._correct(found)
        for _ in range(TRIES):
            if -MISSED <= nearest[1] <= OVER:
                break
            try:
                found = self.program.solve(self._asked())
            except ValueError:  # no more can go
                break
            over = self._correct(found)
            if (over >= -MISSED, -abs(over)) > (nearest[1] >= -MISSED, -abs(nearest[1])):
                nearest = found, over
        return nearest[0]

    def _near(self, again: Program, best: State, changes: int) -> Chosen | None:
        """Return the best choice near another one that really saves enough; None if it does not."""
        for _ in range(2):
            names = again.solve(self._asked(), (dict(best.names), changes))
            if self._correct(names) >= -MISSED:
                return names
        return None

    def _asked(self) -> dict[str, float]:
        return {cost: share + self._more[cost] for cost, share in self.need.items()}

    def _correct(self, names: Chosen) -> float:
        """Ask for more, or less, by what a choice really saves; return by how much it exceeds the least met need."""
        counted = {cost: self.program.saved(names, cost) for cost in self.need}
        saved = {**counted, **(self.measure(names) if self.measure is not None else {})}
        self._more = {cost: counted[cost] - saved[cost] for cost in self.need}
        return min(saved[cost] - share for cost, share in self.need.items())


def fitted(library: Library, names: Mapping[str, str]) -> State:
    """Return a choice once it is fitted in order and judged."""
    chosen, moments = library.walks.walk(library.chosen(names))
    return State(dict(names), chosen, moments, library.scorer.divergence(chosen))


def rescored(library: Library, program: Program, state: State) -> Program:
    """Return the program with scores on top of a choice; options that are far from it cannot be taken.

    Args:
        library: Scored.
        program: Over the library's scores.
        state: The choice.
    """
    scorer, options = library.scorer, dict[str, list[Option]]()
    base = scorer.rebase(state.chosen)
    at = {station.site: station for station in library.stations}
    inside = {inner for outer, inner in program.holds if state.names[outer] != DENSE}
    with progress("scoring variants again", len(program.options)) as advance:
        for site, own in program.options.items():
            if site in inside:  # nothing there is computed
                options[site] = list(own)
                advance()
                continue
            here = [option.name for option in own].index(state.names[site])
            scores = {here: 0.0}
            for number in _to_score(own, here):
                variant = library.sites[site].variant(own[number].name)
                fit = library.fit_of(site, at.get(site), variant, state.moments.get(site))
                others = {name: one for name, one in state.chosen.items() if name != site}
                trial = others if own[number].name == DENSE else {**others, site: (variant, fit)}
                scores[number] = scorer.divergence(_in_order(library, trial)) - base
            options[site] = [
                replace(option, score=_between(scores, number, len(own))) for number, option in enumerate(own)
            ]
            advance()
    return replace(program, options=options)


def _to_score(options: Sequence[Option], here: int) -> list[int]:
    """Return the numbers of the options that are scored again: near the chosen one, and replacements."""
    sizes = [number for number, option in enumerate(options) if not option.gone]
    near = {max(0, here - NEAR), min(here + NEAR, max(sizes))} if here in sizes else {max(sizes)}
    return sorted((near | {n for n, option in enumerate(options) if option.gone}) - {here})


def _between(scores: Mapping[int, float], number: int, count: int) -> float:
    """Return the score of an option: its own, or between those of its neighbours; infinite if it is far."""
    if number in scores:
        return scores[number]
    below = max((n for n in scores if n < number), default=-count)
    above = min((n for n in scores if n > number), default=2 * count)
    if above - below > NEAR:
        return math.inf
    share = (number - below) / (above - below)
    return (1 - share) * scores[below] + share * scores[above]


def _in_order(library: Library, chosen: Fitted) -> Fitted:
    return {site: chosen[site] for site in library.sites if site in chosen}
