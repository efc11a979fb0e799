"""Intervals for the figures of a report: proportions, means, medians and paired differences.

Proportions get Wilson's interval (Wilson 1927), which stays inside [0, 1] and keeps its level near 0 and 1. All other
figures get a percentile bootstrap (Efron 1979) by scipy, seeded. A bootstrap knows only the given samples: two models
with equal results on every sample get an interval of width zero, whatever their results on further samples. For fewer
values than `LEAST`, no interval keeps its level, not even the full range, and the range is returned.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

LEVEL = 0.95  # nominal coverage of all intervals
LEAST = math.ceil(round(1 - math.log2(1 - LEVEL), 9))  # all values lie on one side of the median once in 2^(n - 1)
RESAMPLES = 10_000
CHUNK = 2**22  # drawn values held at a time
RECURRING = 10  # samples per distinct value; from then on counts are quicker to draw than samples


@dataclass(frozen=True)
class Interval:
    """Estimate with an interval.

    Args:
        value: Estimate.
        low: Lower end.
        high: Upper end.
        confidence: Nominal coverage, between 0 and 1; None: the ends are the range of the values, too few for an
            interval.
    """

    value: float
    low: float
    high: float
    confidence: float | None = LEVEL

    def __contains__(self, x: float) -> bool:
        """Whether `x` lies inside, ends included."""
        return self.low <= x <= self.high

    def ends(self, shown: Callable[[float], str] = "{:.4g}".format) -> str:
        """Return both ends in brackets; a range is marked.

        >>> Interval(2, 1, 3).ends(), Interval(2, 1, 3, confidence=None).ends()
        ('[1, 3]', '[range 1, 3]')

        Args:
            shown: Function from a number to text.
        """
        what = "range " if self.confidence is None else ""
        return f"[{what}{shown(self.low)}, {shown(self.high)}]"


def wilson_interval(correct: int, total: int) -> Interval:
    """Return the share of successes with Wilson's interval.

    Args:
        correct: Number of successes.
        total: Number of samples.

    >>> wilson_interval(8, 10).low.__round__(3)
    0.49

    Raises:
        ValueError: If there is no sample, or more successes than samples.
    """
    from scipy.stats import binomtest

    if total < 1 or not 0 <= correct <= total:
        raise ValueError(
            f"Expected 0 <= correct <= total with at least one sample, but got correct={correct}, total={total}. "
            "Was the evaluation loader empty?"
        )
    bounds = binomtest(correct, total).proportion_ci(LEVEL, method="wilson")
    return Interval(correct / total, float(bounds.low), float(bounds.high))


def mean_interval(scores: ArrayLike, seed: int = 0) -> Interval:
    """Return the mean of per-sample scores: Wilson's interval if all are 0 or 1, else a bootstrap of the mean.

    Args:
        scores: Scores `(N,)`, one per sample.
        seed: Seed of the bootstrap.

    Raises:
        ValueError: If there is no score, or a score is not finite.
    """
    values = _vector(scores)
    if is_share(values):
        return wilson_interval(int(values.sum()), len(values))
    return _bootstrapped_mean(values, seed)


def is_share(scores: ArrayLike) -> bool:
    """Whether all scores are 0 or 1, and their mean a share of the samples."""
    return bool(np.isin(scores, (0, 1)).all())


def paired_difference(before: ArrayLike, after: ArrayLike, seed: int = 0) -> Interval:
    """Return the mean of `after - before` over samples seen by both models, with a paired bootstrap.

    Args:
        before: Scores `(N,)` of the first model, for instance 1 for a correct and 0 for a wrong prediction.
        after: Scores `(N,)` of the second model on the same samples in the same order.
        seed: Seed of the bootstrap.

    Raises:
        ValueError: If the two do not have the same, positive, number of finite scores.
    """
    first, second = _vector(before), _vector(after)
    if len(first) != len(second):
        raise ValueError(
            f"Expected scores of the same samples, but got {len(first)} before and {len(second)} after. "
            "Score both models on the same batches."
        )
    return _bootstrapped_mean(second - first, seed)


def median_interval(values: ArrayLike, seed: int = 0) -> Interval:
    """Return the median with a bootstrap interval.

    Args:
        values: Values `(N,)`.
        seed: Seed of the bootstrap.

    Raises:
        ValueError: If there is no value, or a value is not finite.
    """
    return _bootstrapped(np.median, _vector(values), seed)


def _bootstrapped(statistic: Callable[..., Any], values: NDArray[np.float64], seed: int) -> Interval:
    """Bootstrap a statistic with an argument `axis`."""
    from scipy.stats import bootstrap

    value = float(statistic(values))
    if len(values) < LEAST:
        return Interval(value, float(values.min()), float(values.max()), None)
    found = bootstrap(
        (values,),
        statistic,
        n_resamples=RESAMPLES,
        batch=max(1, CHUNK // len(values)),
        confidence_level=LEVEL,
        method="percentile",
        random_state=np.random.default_rng(seed),
    ).confidence_interval
    return Interval(value, float(found.low), float(found.high))


def _bootstrapped_mean(values: NDArray[np.float64], seed: int) -> Interval:
    """Bootstrap a mean; for recurring values, as in correctness, by drawing the count of each distinct value.

    The law is the same. Three distinct values of 10,000 samples, 10,000 times: 2 ms instead of scipy's 0.5 s; but
    10,000 distinct values take 6 s instead of 0.6 s.
    """
    distinct, counts = np.unique(values, return_counts=True)
    if len(distinct) * RECURRING > len(values) or len(values) < LEAST:
        return _bootstrapped(np.mean, values, seed)
    rng = np.random.default_rng(seed)
    rows = max(1, CHUNK // len(distinct))
    means = [
        rng.multinomial(len(values), counts / len(values), size=min(rows, RESAMPLES - done)) @ distinct / len(values)
        for done in range(0, RESAMPLES, rows)
    ]
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(np.concatenate(means), (tail, 1 - tail))
    return Interval(float(values.mean()), float(low), float(high))


def _vector(values: ArrayLike) -> NDArray[np.float64]:
    vector = np.asarray(values, dtype=np.float64)
    if vector.ndim != 1 or not len(vector) or not np.isfinite(vector).all():
        raise ValueError(
            f"Expected a non-empty vector of finite scores, but got shape {vector.shape} with "
            f"{int((~np.isfinite(vector)).sum())} non-finite values. "
            "Was the evaluation loader empty, or did a model diverge?"
        )
    return vector
