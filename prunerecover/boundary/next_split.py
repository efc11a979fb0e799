"""Sequential design: the next split to train, given the runs so far, for the least regret of the final pick.

The first three runs are spread over the feasible splits; with divergences from before any training, over the splits
near the least divergence, five at least. Each further run is the split with the largest expected rise of the predicted
accuracy of the final pick: the knowledge gradient (Frazier, Powell and Dayanik 2009) of the Gaussian process in
`gaussian_surface`. The choice lies near the top, on the less certain side, and at times repeats the best split so far.
On synthetic surfaces five adaptive runs lose 0.07 points to the best split, 0.045 beside divergences, and five spread
runs with a parabola 0.13 (`benchmarks/boundary/map_synthetic.py`). Not from the paper, where all runs are fixed
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

FIRST = 3  # spread runs; fewer do not show a bend
NEAR = 2.0  # limit, times the least divergence, on the splits to spread first runs over
FEWEST = 5  # minimum number of splits to spread first runs over, by least divergence
NODES = 15  # nodes of Gauss-Hermite quadrature, for a piecewise linear integrand


def next_split(
    points: Iterable[MapPoint],
    splits: Iterable[Split],
    layers: Layers,
    *,
    divergences: Mapping[Split, float] | None = None,
    noise: float = 0.5,
) -> Split:
    """Choose the next run among the feasible splits. Stateless: an interrupted search goes on from the runs.

    Args:
        points: Runs so far; runs off the feasible splits count, too.
        splits: Feasible splits, from `feasible_splits` or `affordable_splits`.
        layers: Number of attention and activation units of the dense model, as a pair or a common number.
        divergences: Output divergences of splits, see `fit_map`.
        noise: Standard deviation of a run in points.

    Returns:
        The split. A repeated split is meant to run again with another seed.

    Raises:
        ValueError: If there is no feasible split, a split does not fit the model, or a divergence is not finite.

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
    """Return the first runs, chosen without results.

    Args:
        splits: Feasible splits.
        layers: Number of attention and activation units of the dense model.
        divergences: Output divergences, see `fit_map`; used only if known for every split.

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
    """Return the expected rise, in points, of the best predicted accuracy by another run of each split.

    Args:
        mean: Predicted accuracies, `(M,)`.
        covariance: Covariance of the predictions, `(M, M)`.
        noise: Standard deviation of a run in points.

    Returns:
        `(M,)`, at least 0; the highest is the next run.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
    spread_of_run = np.sqrt(np.maximum(np.diag(covariance), 0) + noise**2)
    shifts = covariance / spread_of_run  # (M, M): column i is the shift of all predictions by a run of i, one sd high
    best = (mean[:, None, None] + shifts[:, :, None] * nodes).max(axis=0)  # (M, nodes)
    gains: Array = best @ weights / weights.sum() - mean.max()
    return gains
