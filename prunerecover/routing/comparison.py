"""Comparison of routing with the dense model, the best static set, and the route of an oracle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from prunerecover.cost.statistics import Interval, mean_interval, paired_difference
from prunerecover.display.markdown import table


@dataclass(frozen=True)
class RouteComparison:
    """Gain of routing on questions unknown to sets and router.

    Attributes:
        metric: Name of the score, higher is better.
        dense: Mean score of the dense model; None: not given.
        static: Mean score of the static set.
        routed: Mean score of the routed sets.
        oracle: Mean score of the best set of each question, an upper bound for routers.
        gain: Gain of routing over the static set, with the paired interval.
        possible: Gain of the oracle over the static set.
        picked: Number of questions of each set, by name.
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
        """Whether the whole interval of the gain is above zero; False with too few questions for an interval."""
        return self.gain.low > 0 and self.gain.confidence is not None

    @property
    def gap_closed(self) -> float:
        """Gain of routing as a share of the gain of the oracle."""
        return self.gain.value / self.possible.value if self.possible.value > 0 else 0.0

    def __str__(self) -> str:
        """Return a table and a sentence, in Markdown."""
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
    """Return an estimate and its interval; a sign of "+" is written for positive numbers, too."""
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
        scores: Score of each question under each set, `(questions, sets)`, higher is better: see `route_table`.
        routes: Number of the routed set of each question, chosen from the prompt alone.
        names: Names of the sets.
        static: Number of the set for all prompts without a router.
        dense: Scores of the dense model, `(questions,)`.
        metric: Name of the score.
        seed: Seed of the bootstrap.

    Raises:
        ValueError: If shapes do not fit together, there are no questions, or a set number is out of range.
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
    """Return whether a saved model routes by default.

    Args:
        likelihood: Comparison by the likelihood of right answers: the whole interval of the gain has to be above zero.
        accuracy: Comparison by accuracy on the same questions: the interval of the gain must not lie below zero.
    """
    return likelihood.worth_it and accuracy.gain.high >= 0
