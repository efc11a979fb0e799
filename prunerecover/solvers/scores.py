"""Scores of a program's options: measured for some, and interpolated between until a choice takes an option."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from scipy.interpolate import PchipInterpolator

from prunerecover.solvers.program import Chosen, Option, Program

Measure = Callable[[Sequence[tuple[str, str]]], Sequence[float]]  # scores by the names of sites and options


class Scores:
    """Scores of options as the only change of a network.

    Scores between measured scores follow a monotone curve: small steps cost less than their part of large steps, and a
    straight line would miss the difference. The options of a choice are measured, and the program is solved again: no
    final choice rests on the curve.

    Args:
        program: Options by site, from the unchanged site to smaller and smaller options.
        known: Measured scores by site and option, including all options that remove the site.
        measure: Function from names of sites and options to scores.
        guesses: Scores of options outside the measured range; None: such options cannot be taken.

    Attributes:
        known: Measured scores by site and option.
    """

    def __init__(
        self,
        program: Program,
        known: Mapping[str, Mapping[str, float]],
        measure: Measure,
        guesses: Mapping[str, Mapping[str, float]] | None = None,
    ) -> None:
        self._program, self._measure, self.guesses = program, measure, guesses or {}
        self.known = {site: dict(own) for site, own in known.items()}

    @property
    def program(self) -> Program:
        """Program with the scores known so far."""
        options = {
            site: [replace(option, score=score) for option, score in zip(own, self._scores(site, own), strict=True)]
            for site, own in self._program.options.items()
        }
        return replace(self._program, options=options)

    def _scores(self, site: str, options: Sequence[Option]) -> list[float]:
        guesses, found = self.guesses.get(site, {}), scores_between(options, self.known[site])
        return [
            guesses.get(option.name, math.inf) if math.isinf(score) and option.name not in self.known[site] else score
            for option, score in zip(options, found, strict=True)
        ]

    @property
    def said(self) -> str:
        """Digest of the names of measured options and of the guesses, which decide all scores."""
        names = sorted((site, *sorted(own)) for site, own in self.known.items())
        return hashlib.sha256(repr((names, sorted(self.guesses.items()))).encode()).hexdigest()

    def measured(self, chosen: Chosen) -> bool:
        """Measure the options of a choice; return whether an option was unknown."""
        return self.know(list(chosen.items()))

    def know(self, asked: Sequence[tuple[str, str]]) -> bool:
        """Measure options, by the names of sites and options; return whether an option was unknown."""
        new = [(site, name) for site, name in asked if name not in self.known[site]]
        for (site, name), score in zip(new, self._measure(new) if new else (), strict=True):
            self.known[site][name] = score
        return bool(new)


def scores_between(options: Sequence[Option], known: Mapping[str, float]) -> list[float]:
    """Return the scores of one site's options; infinite outside the measured range.

    Args:
        options: Options from the unchanged site to smaller and smaller options.
        known: Measured scores by name.

    >>> options = [Option(f"{kept} of 4 heads", 0.0, {}) for kept in (4, 3, 2)]
    >>> scores_between(options, {"4 of 4 heads": 0.0, "2 of 4 heads": 1.0})
    [0.0, 0.5, 1.0]
    """
    at = [n for n, one in enumerate(options) if not one.gone and math.isfinite(known.get(one.name, math.inf))]
    curve = PchipInterpolator(at, [known[options[n].name] for n in at]) if len(at) > 1 else None
    found = []
    for number, option in enumerate(options):
        if option.name in known:
            found.append(known[option.name])
        elif curve is None or option.gone or not at[0] < number < at[-1]:
            found.append(math.inf)
        else:
            found.append(float(curve(number)))
    return found
