"""A Gaussian process through measured accuracies, with a prior that is fixed: a handful of runs cannot teach one.

The prior says: a quadratic in the kept fractions of whatever slope and curvature, plus smooth deviations of about two
points over a third of the depth (a cliff where one attention too many goes), plus the noise of a run. Unlike a parabola
it bends where the runs do, and it knows where it does not know, which `next_split` uses to choose the next run.

Where divergences before any training are known, the surface is a mean over that process and such as take the
divergences for rough copies of the accuracies (`guide`), one for each of several scales; how well each foretells the
runs decides what it counts for. What both leave to lose is in `benchmarks/boundary/map_synthetic.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from prunerecover.boundary.guide import Guide, fit_guided
from prunerecover.boundary.surfaces import Array, Line, left_out_errors, pooled_rmse

QUADRATIC = 36.0  # points: prior sd of the curvature term; at depth 12, a quarter of a point per layer squared
DEVIATION = 2.0  # points: how far the surface strays from a quadratic
LENGTH = 0.47  # in kept fractions (a, t): along a line of equal counts, a third of the depth
LOST = (1.5, 3.0, 6.0, 12.0, 24.0, 48.0)  # points lost at the mean divergence: scales that are tried, all as likely
SILENT = 0.35  # probability beforehand that divergences say nothing of accuracies


class Processes(Protocol):
    """Gaussian processes, S of them, that have seen the same runs."""

    @property
    def log_evidence(self) -> Array:
        """Log density of the runs, `(S,)`."""

    def posterior(self, kept: Array) -> tuple[Array, Array]:
        """Return the expected accuracies `(S, M)` and their covariance `(S, M, M)`."""


@dataclass(frozen=True, eq=False)
class PlainProcess:
    """One Gaussian process that has seen runs alone.

    Args:
        model: A fitted `sklearn.gaussian_process.GaussianProcessRegressor`.
    """

    model: Any

    @property
    def log_evidence(self) -> Array:
        """Log density of the runs, `(1,)`."""
        return np.array([self.model.log_marginal_likelihood_value_])

    def posterior(self, kept: Array) -> tuple[Array, Array]:
        """Return the expected accuracies `(1, M)` and their covariance `(1, M, M)`."""
        mean, covariance = self.model.predict(kept, return_cov=True)
        return mean[None], covariance[None]


@dataclass(frozen=True, eq=False)
class GaussianSurface:
    """A mean over Gaussian processes that have seen the runs.

    Args:
        processes: That which has seen runs alone, and those that are guided, if any.
        weights: What each process counts for; their sum is 1.
        cv_rmse: Leave-two-out RMSE in points of the process that has seen runs alone; None if fewer than three runs
            would stay, and the prior would decide.
        line: If the runs lie along one line, that line: off it they say nothing.
    """

    processes: Sequence[Processes]
    weights: Array
    cv_rmse: float | None
    line: Line | None = None

    def predict(self, kept: Array) -> Array:
        """Return the expected accuracies `(M,)` in percent.

        Raises:
            ValueError: If the runs lie along a line, and a split is off it.
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
        """Return accuracies `(size, M)` in percent from a Gaussian of the posterior's mean and covariance.

        Args:
            kept: `(M, 2)` fractions of attentions and activations.
            size: Number of draws.
            rng: What draws.
        """
        mean, covariance = self.posterior(kept)
        return rng.multivariate_normal(mean, covariance, size, check_valid="ignore", method="eigh")


def fit_gaussian(
    kept: Array, accuracy: Array, noise: float, line: Line | None = None, guide: Guide | None = None
) -> GaussianSurface:
    """Condition the process on the runs, and on divergences if there are some.

    Args:
        kept: `(N, 2)` fractions of attentions and activations that the runs kept.
        accuracy: `(N,)` in percent.
        noise: Standard deviation of one run in points.
        line: That the runs lie on, if predictions off it are to be refused.
        guide: Divergences of splits before any training.
    """
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import DotProduct, Matern

    smooth = Matern(LENGTH, nu=2.5)
    kernel = QUADRATIC**2 * DotProduct(1.0) ** 2 + DEVIATION**2 * smooth
    model = GaussianProcessRegressor(kernel, alpha=noise**2, optimizer=None).fit(kept, accuracy)
    processes: list[Processes] = [PlainProcess(model)]
    prior = np.zeros(1)
    if guide is not None:
        processes.append(fit_guided(kernel, smooth, kept, accuracy, noise, guide, LOST))
        prior = np.log([SILENT, *[(1 - SILENT) / len(LOST)] * len(LOST)])
    log = prior + np.concatenate([each.log_evidence for each in processes])
    weights = np.exp(log - log.max())
    precision = np.linalg.inv(kernel(kept) + noise**2 * np.eye(len(kept)))
    errors = left_out_errors(precision, accuracy) if len(kept) >= 5 else None
    return GaussianSurface(processes, weights / weights.sum(), pooled_rmse(errors), line)
