"""Times of plans at equal divergence, interpolated between the divergences of other plans."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.runner.rows import Figure, Row, Scores
from prunerecover.cost.statistics import Interval

DRAWS = 2000


def interpolated(divergence: float, plans: Sequence[tuple[float, float]]) -> float | None:
    """Return the time of plans at a divergence, linear in its logarithm between neighbours; None outside of the plans.

    Args:
        divergence: Divergence above 0.
        plans: Divergence and time of each plan; a plan of less divergence also serves where more is allowed.

    >>> interpolated(0.01, [(0.1, 0.6), (0.001, 0.8)])
    0.7
    """
    found, times = np.array(sorted(plans)).T
    if not found[0] <= divergence <= found[-1]:
        return None
    return float(np.interp(np.log(divergence), np.log(found), np.minimum.accumulate(times)))


def time_ratio(rows: Sequence[Row], others: Sequence[Row], clock: str) -> Interval | None:
    """Return the time of plans over the time of other plans at equal divergence, a geometric mean.

    The 95% interval is of draws of the images, the same for all plans, and of times within their intervals.

    Args:
        rows: Plans to judge; plans outside of the divergences of the others are left out.
        others: Plans to compare with.
        clock: Name of the figure of the time.

    Returns:
        The ratio; None if no plan is left.
    """
    known = [(divergence_of(row), row.figures[clock].value) for row in others]
    rows = [row for row in rows if known and interpolated(divergence_of(row), known) is not None]
    if not rows:
        return None
    both, ours, generator = [*rows, *others], len(rows), np.random.default_rng(0)
    scores = np.stack([row.figures["divergence"].scores for row in both])
    times = np.array([row.figures[clock].value for row in both])
    spread = [_spread(row.figures[clock]) for row in both]
    drawn = [_ratio(scores.mean(1), times, ours)]
    for _ in range(DRAWS):
        images = generator.integers(0, scores.shape[1], scores.shape[1])
        drawn.append(_ratio(scores[:, images].mean(1), times * np.exp(generator.normal(0, spread)), ours))
    low, high = np.quantile(drawn[1:], (0.025, 0.975))
    return Interval(drawn[0], float(low), float(high))


def _ratio(means: Scores, times: Scores, ours: int) -> float:
    """Return the mean ratio of the first plans to the others; drawn divergences are kept within those of the others."""
    plans = [*zip(means[ours:], times[ours:], strict=True)]
    within = np.clip(means[:ours], min(plans)[0], max(plans)[0])
    logs = [np.log(time / (interpolated(one, plans) or 1)) for one, time in zip(within, times[:ours], strict=True)]
    return float(np.exp(np.mean(logs)))


def divergence_of(row: Row) -> float:
    """Return the mean divergence over images."""
    return row.figures["divergence"].value


def _spread(found: Figure) -> float:
    """Return the standard error of a time's logarithm."""
    return float(np.log((found.high or found.value) / (found.low or found.value))) / 3.92
