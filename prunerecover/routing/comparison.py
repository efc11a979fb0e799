"""Is routing worth it? The routed model beside the dense one, the best static set, and the route of an oracle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from prunerecover.cost.statistics import Interval, mean_interval, paired_difference
from prunerecover.display.markdown import table


@dataclass(frozen=True)
class RouteComparison:
    """What routing gains on questions that neither sets nor router were made on.

    Attributes:
        metric: What the scores are, higher being better.
        dense: Mean score of the dense model; None: it was not asked.
        static: Mean score of the static set.
        routed: Mean score of the sets that the router picked.
        oracle: Mean score of the best set of each question: no router can do better.
        gain: Of routing over the static set, with the paired interval.
        possible: Of the oracle over the static set.
        picked: How often each set was picked.
    """

    metric: str
    dense: Interval | None
    static: Interval
    routed: Interval
    oracle: Interval
    gain: Interval
    possible: Interval
    picked: dict[str, int]

    @property
    def worth_it(self) -> bool:
        """Whether routing is ahead of the static set with its whole interval; not if questions are too few for one."""
        return self.gain.low > 0 and self.gain.confidence is not None

    @property
    def gap_closed(self) -> float:
        """The part of the way from the static set to the oracle that routing goes."""
        return self.gain.value / self.possible.value if self.possible.value > 0 else 0.0

    def __str__(self) -> str:
        """Return a table and one sentence, Markdown."""
        rows = [("dense", self.dense), ("static set", self.static)]
        rows += [("routed", self.routed), ("oracle", self.oracle)] if len(self.picked) > 1 else []
        cells = [(name, _written(found)) for name, found in rows if found is not None]
        return f"{table(('model', self.metric), cells)}\n\n{self._verdict()}"

    def _verdict(self) -> str:
        asked = f"{sum(self.picked.values()):,} questions"
        if len(self.picked) == 1:
            return f"One set serves all {asked}: there is nothing to route."
        behind = self.gain.high < 0 and self.gain.confidence is not None
        said = "ahead of" if self.worth_it else "behind" if behind else "not ahead of"
        verdict = f"Routing is {said} the static set on {asked}: {_written(self.gain, '+')}"
        if self.possible.value <= 0:
            return f"{verdict}. No set does better than the static one on any of them."
        if self.gain.value <= 0:
            return f"{verdict}. An oracle is ahead by {_written(self.possible, '+')}."
        return f"{verdict}, {self.gap_closed:.0%} of the way to the oracle."


def _written(found: Interval, sign: str = "") -> str:
    """Return an estimate and its interval; a sign of "+" is written for what is above zero, too."""
    digits = f"{{:{sign}.4f}}".format
    return f"{digits(found.value)} {found.ends(digits)}"


def compare_routes(
    scores: ArrayLike,
    routes: Sequence[int],
    names: Sequence[str],
    *,
    static: int = 0,
    dense: ArrayLike | None = None,
    metric: str = "log-likelihood per token",
    seed: int = 0,
) -> RouteComparison:
    """Compare routes question by question.

    Args:
        scores: Of each question under each set, `(questions, sets)`, higher being better: see `route_table`.
        routes: The set that was picked for each question, from its prompt alone.
        names: Of the sets.
        static: Number of the set that serves every prompt without a router.
        dense: Scores of the dense model, `(questions,)`.
        metric: What the scores are.
        seed: Of the bootstrap.

    Raises:
        ValueError: If the shapes do not fit together, there are no questions, or a number is of no set.
    """
    found: NDArray[np.float64] = np.asarray(scores, dtype=np.float64)
    picked = np.asarray(routes)
    if found.ndim != 2 or found.shape != (len(picked), len(names)):
        raise ValueError(
            f"Expected scores of {len(picked)} questions under {len(names)} sets, but got shape {found.shape}."
        )
    last = len(names) - 1
    if not len(picked):
        raise ValueError("Expected one question or more, but got none.")
    if not 0 <= static <= last:
        raise ValueError(f"Expected the static set's number from 0 to {last}, but got {static}.")
    odd = picked[(picked < 0) | (picked > last)]
    if odd.size:
        raise ValueError(f"Expected routes from 0 to {last}, but got {odd[0]}.")
    if dense is not None and np.shape(dense) != picked.shape:
        raise ValueError(
            f"Expected a score of the dense model for each of {len(picked)} questions, but got shape {np.shape(dense)}."
        )
    fixed, chosen, best = found[:, static], found[np.arange(len(picked)), picked], found.max(1)
    return RouteComparison(
        metric=metric,
        dense=None if dense is None else mean_interval(dense, seed=seed),
        static=mean_interval(fixed, seed=seed),
        routed=mean_interval(chosen, seed=seed),
        oracle=mean_interval(best, seed=seed),
        gain=paired_difference(fixed, chosen, seed=seed),
        possible=paired_difference(fixed, best, seed=seed),
        picked={name: int((picked == number).sum()) for number, name in enumerate(names)},
    )


def should_route(likelihood: RouteComparison, accuracy: RouteComparison) -> bool:
    """Return whether a saved model routes unless it is told not to, on the same questions.

    Args:
        likelihood: Of right answers: routing has to be ahead with the whole interval.
        accuracy: Routing must not be behind with the whole interval.
    """
    return likelihood.worth_it and accuracy.gain.high >= 0
