"""The published table, and runs made up by formulas, for the tests of accuracy maps."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from prunerecover import MapPoint
from prunerecover.boundary.designs import axes_and_staircase, feasible_splits
from prunerecover.boundary.map_points import kept_fractions
from prunerecover.boundary.surfaces import monomials

Truth = Callable[[float, float], float]
# DeiT-B, top-1 in percent, as published with the method (arXiv 2607.03784), in the order of `axes_and_staircase(12)`.
PAPER = (81.80, 81.31, 80.90, 80.20, 78.10, 77.40, 72.69, 69.44, 64.84)
PAPER += (81.07, 80.40, 78.90, 77.80, 76.70, 75.20, 74.50, 73.90, 80.34, 80.03, 78.88, 78.08, 76.52)
TABLE = tuple(MapPoint(*split, y) for split, y in zip(axes_and_staircase(12), PAPER, strict=True))
GRID = tuple((m, n) for m in range(5) for n in range(5))
LINE = feasible_splits(12, n_remove=8)


def arrays(points: tuple[MapPoint, ...], layers: int = 12) -> tuple[np.ndarray, np.ndarray]:
    kept = kept_fractions((point.split for point in points), (layers, layers))
    return kept, np.array([point.accuracy for point in points])


def measured(truth: Truth, splits: tuple[tuple[int, int], ...], layers: int = 12) -> tuple[MapPoint, ...]:
    return tuple(MapPoint(m, n, truth(1 - m / layers, 1 - n / layers)) for m, n in splits)


def polynomial(theta: tuple[float, ...], degree: int) -> Truth:
    """Return a polynomial around 50%, within the range of percentages."""
    return lambda a, t: 50 + sum(c * a**i * t**j for c, (i, j) in zip(theta, monomials(degree), strict=True))


def noisy(splits: tuple[tuple[int, int], ...], seed: int = 0) -> tuple[MapPoint, ...]:
    rng = np.random.default_rng(seed)
    return tuple(MapPoint(m, n, 80 - m - n - 0.2 * m * m + rng.normal(0, 0.5)) for m, n in splits)
