"""Fit of an accuracy map to short training runs: choice of surface and line, accuracy of the dense model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from prunerecover.boundary.accuracy_map import AccuracyMap
from prunerecover.boundary.designs import Layers, Split, layer_counts
from prunerecover.boundary.gaussian_surface import fit_gaussian
from prunerecover.boundary.guide import guide_of
from prunerecover.boundary.map_points import MapPoint, check_inside, kept_fractions
from prunerecover.boundary.surfaces import Surface, constraint_line, fit_parabola, fit_polynomial

SURFACES = ("polynomial", "gaussian_process", "parabola")
DENSE = (0, 0)
DEGREES = (1, 2, 3, 4)  # of the polynomial to choose from, as in the paper


def fit_map(
    points: Iterable[MapPoint],
    layers: Layers,
    *,
    surface: str | None = None,
    splits: Iterable[Split] = (),
    divergences: Mapping[Split, float] | None = None,
    dense: float | None = None,
    noise: float = 0.5,
    seed: int = 0,
) -> AccuracyMap:
    """Fit a surface to the accuracies of short training runs.

    Args:
        points: Results of the runs; the dense model may be among them.
        layers: Number of attention and activation units of the dense model, as a pair or a common number.
        surface: Surface: "polynomial" (the paper), "parabola" (along a line), "gaussian_process" (along a line or in
            the plane). By default a Gaussian process for runs along the line of a budget, with the least regret there
            (`benchmarks/boundary/map_synthetic.py`), and otherwise a polynomial.
        splits: All splits of the budget of the runs, if there is a common budget: a surface on the line then covers
            each split. By default the line is fitted to the runs.
        divergences: Output divergence of splits as planned, before any training: guides for a Gaussian process.
        dense: Accuracy of the dense model in percent after an equal run, if not among the points. Not fitted, only an
            upper limit.
        noise: Standard deviation of the accuracy of a run, in points; from two runs with different seeds.
        seed: Seed of the bootstrap.

    Raises:
        ValueError: If a point does not fit the model, the runs do not determine the surface, a divergence is not
            finite, or an argument is unknown.

    >>> runs = [MapPoint(0, 8, 72.0), MapPoint(3, 5, 75.0), MapPoint(5, 3, 74.0), MapPoint(8, 0, 65.0)]
    >>> fit_map(runs, 12, dense=81.8).best(n_remove=8).split
    (3, 5)
    """
    runs, counts = tuple(points), layer_counts(layers)
    _check_arguments(runs, counts, surface, noise)
    if dense is None:
        measured = [point.accuracy for point in runs if point.split == DENSE]
        dense = float(np.mean(measured)) if measured else None
    fitted = _fit_surface(runs, counts, surface, tuple(splits), divergences or {}, noise)
    return AccuracyMap(runs, counts, fitted, dense, noise, seed)


def check_fit(surface: str | None, noise: float) -> None:
    """Raise ValueError if the surface is unknown, or the noise is not above 0."""
    if surface not in (None, *SURFACES):
        raise ValueError(f"Expected a surface among {', '.join(SURFACES)} or None, but got {surface!r}.")
    if not noise > 0:
        raise ValueError(f"Expected a noise above 0 points, but got {noise}. Half a point is usual for short runs.")


def _fit_surface(
    runs: Sequence[MapPoint],
    layers: tuple[int, int],
    surface: str | None,
    splits: Sequence[Split],
    divergences: Mapping[Split, float],
    noise: float,
) -> Surface:
    kept = kept_fractions((run.split for run in runs), layers)
    accuracy = np.array([run.accuracy for run in runs])
    pruned = np.array([run.split != DENSE for run in runs])
    budget = kept_fractions(splits, layers) if splits else None
    line = constraint_line(kept[pruned], 1 / layers[1], budget)
    if surface == "gaussian_process" or (surface is None and line is not None):
        return fit_gaussian(kept, accuracy, noise, line, guide_of(divergences, layers))
    if surface != "parabola":
        return fit_polynomial(kept, accuracy, DEGREES, noise)
    if line is None:
        raise ValueError(
            f"Expected at least three different splits along the line of one budget for a parabola, but got "
            f"{[run.split for run in runs]}. Choose them with `spread`, or fit surface='polynomial'."
        )
    return fit_parabola(kept[pruned], accuracy[pruned], line, noise)


def _check_arguments(runs: Sequence[MapPoint], layers: tuple[int, int], surface: str | None, noise: float) -> None:
    if not runs:
        raise ValueError("Expected at least one run, but got none. `spread` and `next_split` choose the first ones.")
    check_inside((run.split for run in runs), layers)
    if max(run.accuracy for run in runs) <= 1:
        raise ValueError("Expected accuracies in percent, but got none above 1. Multiply shares by 100.")
    check_fit(surface, noise)
