"""Scores of a program's options: measured for some, and interpolated between until a choice takes an option."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from scipy.interpolate import PchipInterpolator

from prunerecover.solvers.program import Chosen, Option, Program

Measure = Callable[[Sequence[tuple[str, str]]], Sequence[float]]  # of options, by the names of their sites and theirs


class Scores:
    """Scores of options where one site alone changes.

    A score between measured ones follows a monotone curve through them: small steps cost less than their part of large
    ones, which a straight line would miss. What a choice takes is measured, and the program is solved again, so that no
    choice rests on a curve.

    Args:
        program: Options by site, from the site as it is to smaller and smaller ones.
        known: Measured scores by site and option; those of options that nothing is left of among them.
        measure: Returns the scores of other options, by the names of their sites and their own.
        reach: Number of options between measured ones; where more are, none of them can be taken.
    """

    def __init__(
        self, program: Program, known: Mapping[str, Mapping[str, float]], measure: Measure, reach: float = math.inf
    ) -> None:
        self._program, self._measure, self._reach = program, measure, reach
        self._known = {site: dict(own) for site, own in known.items()}

    @property
    def program(self) -> Program:
        """Program with the scores known so far."""
        options = {
            site: [
                replace(option, score=score)
                for option, score in zip(own, scores_between(own, self._known[site], self._reach), strict=True)
            ]
            for site, own in self._program.options.items()
        }
        return replace(self._program, options=options)

    @property
    def said(self) -> str:
        """Digest of the names of measured options, which decide all scores."""
        names = sorted((site, *sorted(own)) for site, own in self._known.items())
        return hashlib.sha256(repr(names).encode()).hexdigest()

    def measured(self, chosen: Chosen) -> bool:
        """Measure the options of a choice; return whether an option was unknown."""
        return self.know(list(chosen.items()))

    def know(self, asked: Sequence[tuple[str, str]]) -> bool:
        """Measure options, by the names of sites and options; return whether an option was unknown."""
        new = [(site, name) for site, name in asked if name not in self._known[site]]
        for (site, name), score in zip(new, self._measure(new) if new else (), strict=True):
            self._known[site][name] = score
        return bool(new)


def scores_between(options: Sequence[Option], known: Mapping[str, float], reach: float = math.inf) -> list[float]:
    """Return the scores of one site's options.

    Args:
        options: Options from the site as it is to smaller and smaller ones.
        known: Measured scores by name.
        reach: Number of options between measured ones; the scores of more are infinite.

    >>> options = [Option(f"{kept} of 4 heads", 0.0, {}) for kept in (4, 3, 2)]
    >>> scores_between(options, {"4 of 4 heads": 0.0, "2 of 4 heads": 1.0})
    [0.0, 0.5, 1.0]
    """
    at = [n for n, one in enumerate(options) if not one.gone and math.isfinite(known.get(one.name, math.inf))]
    curve = PchipInterpolator(at, [known[options[n].name] for n in at]) if len(at) > 1 else None
    found = []
    for number, option in enumerate(options):
        below = max((n for n in at if n < number), default=-math.inf)
        above = min((n for n in at if n > number), default=math.inf)
        if option.name in known:
            found.append(known[option.name])
        elif curve is None or option.gone or math.isinf(above - below) or above - below > reach:
            found.append(math.inf)
        else:
            found.append(float(curve(number)))
    return found
