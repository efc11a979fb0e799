"""Sequential design: the split to train next, given the runs so far, so that the final pick costs least.

The first three runs are spread over the feasible splits; where their divergences before any training are known, over
those near the least one, five at least. Each further one is where a run is expected to raise the predicted accuracy
of the final pick most: the knowledge gradient (Frazier, Powell and Dayanik 2009) of the Gaussian process in
`gaussian_surface`. That is near the top, on the side that is less certain, and at times a second run of the best split
so far. On synthetic surfaces five such runs lose 0.07 points to the best split, 0.045 beside divergences, and
five spread runs with a parabola 0.13 (`benchmarks/boundary/map_synthetic.py`). Not from the paper, whose runs are fixed
beforehand.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from prunerecover.boundary.designs import Layers, Split, layer_counts, spread
from prunerecover.boundary.gaussian_surface import fit_gaussian
from prunerecover.boundary.guide import guide_of
from prunerecover.boundary.map_points import MapPoint, check_inside, kept_fractions
from prunerecover.boundary.surfaces import Array

FIRST = 3  # runs that are spread; fewer do not show a bend
NEAR = 2.0  # times the least divergence: they are spread over splits whose divergence is no larger
FEWEST = 5  # splits of least divergence that they are spread over in any case
NODES = 15  # of Gauss-Hermite quadrature; the integrand is piecewise linear


def next_split(
    points: Iterable[MapPoint],
    splits: Iterable[Split],
    layers: Layers,
    *,
    divergences: Mapping[Split, float] | None = None,
    noise: float = 0.5,
) -> Split:
    """Choose the next run among the feasible splits. Stateless: a search that was killed goes on from its runs.

    Args:
        points: The runs so far; those off the feasible splits count too.
        splits: The feasible splits, from `feasible_splits` or `affordable_splits`.
        layers: Number of attention and activation units of the dense model; one number stands for both.
        divergences: See `fit_map`.
        noise: Standard deviation of one run in points.

    Returns:
        The split. It may be one that was run before: then run it again with another seed.

    Raises:
        ValueError: If there is no feasible split, one does not fit the model, or a divergence is not finite.

    >>> runs = [MapPoint(0, 8, 72.0), MapPoint(4, 4, 75.0), MapPoint(8, 0, 65.0)]
    >>> from prunerecover.boundary.designs import feasible_splits
    >>> next_split(runs, feasible_splits(12, n_remove=8), 12)
    (2, 6)
    """
    counts, runs, feasible = layer_counts(layers), tuple(points), sorted(set(splits))
    check_inside((*feasible, *(run.split for run in runs)), counts)
    measured = {run.split for run in runs}
    first = [split for split in first_splits(feasible, counts, divergences) if split not in measured]
    if first and len(measured - {(0, 0)}) < FIRST:
        return first[0]
    accuracy = np.array([run.accuracy for run in runs])
    kept = kept_fractions((run.split for run in runs), counts)
    surface = fit_gaussian(kept, accuracy, noise, guide=guide_of(divergences or {}, counts))
    gains = knowledge_gradient(*surface.posterior(kept_fractions(feasible, counts)), noise)
    return feasible[int(np.argmax(np.round(gains, 9)))]


def first_splits(
    splits: Iterable[Split], layers: tuple[int, int], divergences: Mapping[Split, float] | None = None
) -> tuple[Split, ...]:
    """Return the first runs, which need no others.

    Args:
        splits: The feasible splits.
        layers: Number of attention and activation units of the dense model.
        divergences: See `fit_map`; what is not known of every split says nothing.

    Raises:
        ValueError: If there is no feasible split, or a divergence is not finite or of no split of the model.

    >>> from prunerecover.boundary.designs import feasible_splits
    >>> first_splits(feasible_splits(12, n_remove=8), (12, 12))
    ((0, 8), (4, 4), (8, 0))
    """
    feasible, known = sorted(set(splits)), divergences or {}
    if feasible and guide_of(known, layers) is not None and known.keys() >= set(feasible):
        limit = NEAR * min(known[split] for split in feasible)
        least = sorted(feasible, key=known.__getitem__)[:FEWEST]
        feasible = [split for split in feasible if split in least or known[split] <= limit]
    return spread(feasible, FIRST)


def knowledge_gradient(mean: Array, covariance: Array, noise: float) -> Array:
    """Return by how many points one more run of each split is expected to raise the best predicted accuracy.

    Args:
        mean: `(M,)` predicted accuracies.
        covariance: `(M, M)` of the predictions.
        noise: Standard deviation of one run in points.

    Returns:
        `(M,)`, at least 0; higher means run it.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
    spread_of_run = np.sqrt(np.maximum(np.diag(covariance), 0) + noise**2)
    shifts = covariance / spread_of_run  # (M, M): column i is how a run of i that is one sd high moves all predictions
    best = (mean[:, None, None] + shifts[:, :, None] * nodes).max(axis=0)  # (M, nodes)
    gains: Array = best @ weights / weights.sum() - mean.max()
    return gains
