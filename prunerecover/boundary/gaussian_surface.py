"""Gaussian process through measured accuracies, with a fixed prior: a handful of runs cannot teach a prior.

The prior is a quadratic in the kept fractions of any slope and curvature, plus smooth deviations of about two points
over a third of the depth (a cliff once an attention too many is removed), plus the noise of a run. Unlike a parabola
the surface bends with the runs, and has large variance away from runs, which `next_split` uses to choose the next run.

With divergences from before any training, the surface is a mean over the plain process and over processes with the
divergences as rough copies of the accuracies (`guide`), for several scales; the weight of each process is given by its
prediction of the runs. The remaining regret is in `benchmarks/boundary/map_synthetic.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from prunerecover.boundary.guide import Guide, Processes, fit_guided, fit_plain
from prunerecover.boundary.surfaces import Array, Line, left_out_errors, pooled_rmse

QUADRATIC = 36.0  # points: prior sd of the curvature term; at depth 12, a quarter of a point per layer squared
DEVIATION = 2.0  # points: how far the surface strays from a quadratic
LENGTH = 0.47  # in kept fractions (a, t): along a line of equal counts, a third of the depth
LOST = (1.5, 3.0, 6.0, 12.0, 24.0, 48.0)  # points lost at the mean divergence: scales to try, equally likely
SILENT = 0.35  # prior probability of divergences without information on accuracies


@dataclass(frozen=True, eq=False)
class GaussianSurface:
    """Mean over Gaussian processes conditioned on the runs.

    Args:
        processes: The process on runs alone, and guided processes, if any.
        weights: Weight of each process; the sum is 1.
        cv_rmse: Leave-two-out RMSE in points of the process on runs alone; None for fewer than five runs, where the
            prior would decide.
        line: Line of the runs, to refuse predictions off the line; None: no line.
    """

    processes: Sequence[Processes]
    weights: Array
    cv_rmse: float | None
    line: Line | None = None

    def predict(self, kept: Array) -> Array:
        """Return the expected accuracies `(M,)` in percent.

        Raises:
            ValueError: If a split is off the line of the runs.
        """
        return self.posterior(kept)[0]

    def posterior(self, kept: Array) -> tuple[Array, Array]:
        """Return the expected accuracies `(M,)` and their covariance `(M, M)`; raises as `predict` does."""
        if self.line is not None:
            self.line.check(kept)
        means, covariances = map(np.concatenate, zip(*(each.posterior(kept) for each in self.processes), strict=True))
        mean = self.weights @ means
        within = np.tensordot(self.weights, covariances, axes=1)
        return mean, within + (means - mean).T @ (self.weights[:, None] * (means - mean))

    def draw(self, kept: Array, size: int, rng: np.random.Generator) -> Array:
        """Return accuracies `(size, M)` in percent from a Gaussian with mean and covariance of the posterior.

        Args:
            kept: Kept fractions of attentions and activations, `(M, 2)`.
            size: Number of draws.
            rng: Random generator.
        """
        mean, covariance = self.posterior(kept)
        return rng.multivariate_normal(mean, covariance, size, check_valid="ignore", method="eigh")


def fit_gaussian(
    kept: Array, accuracy: Array, noise: float, line: Line | None = None, guide: Guide | None = None
) -> GaussianSurface:
    """Condition the process on the runs, and on divergences if given.

    Args:
        kept: Kept fractions of attentions and activations in the runs, `(N, 2)`.
        accuracy: Accuracies in percent, `(N,)`.
        noise: Standard deviation of a run in points.
        line: Line of the runs, to refuse predictions off the line.
        guide: Divergences of splits before any training.
    """
    from sklearn.gaussian_process.kernels import DotProduct, Matern

    smooth = Matern(LENGTH, nu=2.5)
    kernel = QUADRATIC**2 * DotProduct(1.0) ** 2 + DEVIATION**2 * smooth
    processes = [fit_plain(kernel, kept, accuracy, noise)]
    prior = np.zeros(1)
    if guide is not None:
        processes.append(fit_guided(kernel, smooth, kept, accuracy, noise, guide, LOST))
        prior = np.log([SILENT, *[(1 - SILENT) / len(LOST)] * len(LOST)])
    log = prior + np.concatenate([each.log_evidence for each in processes])
    weights = np.exp(log - log.max())
    errors = left_out_errors(processes[0].precision[0], accuracy) if len(kept) >= 5 else None
    return GaussianSurface(processes, weights / weights.sum(), pooled_rmse(errors), line)
