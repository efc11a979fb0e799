"""Scores of variants on top of a choice: measured when taken, and guessed before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite

from prunerecover.library.variants import DENSE
from prunerecover.solvers.program import Option, Program
from prunerecover.solvers.scores import Scores
from prunerecover.solvers.state import Nearby, State

NEAR = 4  # sizes beside the chosen one that may be taken, with replacements
TIE = 0.01  # of the divergence: scores alone that differ less do not tell replacements from each other


def scores_on_top(program: Program, nearby: Nearby) -> Scores:
    """Return the scores of options on top of a choice, each measured when it is first taken.

    Args:
        program: Program with scores of options alone.
        nearby: Judge of nearby choices.
    """
    base = nearby.base
    inside = {inner for outer, inner in program.holds if base.names[outer] != DENSE}  # nothing there is computed

    def measure(asked: Sequence[tuple[str, str]]) -> list[float]:
        return nearby.increases([{site: name} for site, name in asked])

    known = {
        site: {o.name: o.score for o in own} if site in inside else {base.names[site]: 0.0}
        for site, own in program.options.items()
    }
    return Scores(program, known, measure)


def increases_on_top(
    program: Program, state: State, before: tuple[State, Scores] | None = None
) -> dict[str, dict[str, float]]:
    """Return the expected scores of options on top of a choice; of none far from it.

    An option adds about as much as measured on top of the choice before; else about its score alone, less that of the
    chosen option, times the divergence of the choice over the sum of its scores alone: sites cost more together.
    Replacements that scores alone do not tell from the chosen one are expected to be better, and so are measured.

    Args:
        program: Program with scores of options alone.
        state: Choice.
        before: Similar choice, with scores on top.
    """
    alone, found = program.score(state.names), dict[str, dict[str, float]]()
    together = state.divergence / alone if alone > 0 and isfinite(state.divergence) else 1.0
    tie = TIE * state.divergence if isfinite(state.divergence) else 0.0
    for site, own in program.options.items():
        here = [option.name for option in own].index(state.names[site])
        more = {n: own[n].score - own[here].score for n in _near_by(own, here)}
        tied = {n for n in more if own[n].gone and own[here].gone and abs(more[n]) < tie}
        found[site] = {own[n].name: -tie if n in tied else together * value for n, value in more.items()}
        known = before[1].known[site] if before is not None else {}
        if own[here].name in known:
            measured = known.keys() & found[site].keys()
            found[site] |= {name: known[name] - known[own[here].name] for name in measured}
    return found


def guesses_on_top(expected: Mapping[str, Mapping[str, float]], slack: float) -> dict[str, dict[str, float]]:
    """Return guessed scores of options on top of a choice, in favour of the options.

    Args:
        expected: Expected scores, by site and option.
        slack: Part of an expected increase that an option may add in truth, and inverse of what a decrease may be.
    """
    return {
        site: {name: value * slack if value > 0 else value / slack for name, value in own.items()}
        for site, own in expected.items()
    }


def _near_by(options: Sequence[Option], here: int) -> list[int]:
    """Return the numbers of the options that may be taken: sizes near the chosen one, and replacements."""
    sizes = [number for number, option in enumerate(options) if not option.gone]
    at = here if here in sizes else max(sizes)
    near = [n for n in sizes if abs(n - at) <= (NEAR if here in sizes else 0)]
    return [n for n in (*near, *(n for n, option in enumerate(options) if option.gone)) if n != here]
