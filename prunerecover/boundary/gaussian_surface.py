"""A Gaussian process through measured accuracies, with a prior that is fixed: a handful of runs cannot teach one.

The prior says: a quadratic in the kept fractions of whatever slope and curvature, plus smooth deviations of about two
points over a third of the depth (a cliff where one attention too many goes), plus the noise of a run. Unlike a parabola
it bends where the runs do, and it knows where it does not know, which `next_split` uses to choose the next run. What it
leaves to lose, beside other surfaces, is in `benchmarks/boundary/map_synthetic.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from prunerecover.boundary.surfaces import Array, Line, left_out_errors, pooled_rmse

QUADRATIC = 36.0  # points: prior sd of the curvature term; at depth 12, a quarter of a point per layer squared
DEVIATION = 2.0  # points: how far the surface strays from a quadratic
LENGTH = 0.47  # in kept fractions (a, t): along a line of equal counts, a third of the depth


@dataclass(frozen=True, eq=False)
class GaussianSurface:
    """A Gaussian process that has seen the runs.

    Args:
        model: A fitted `sklearn.gaussian_process.GaussianProcessRegressor`.
        cv_rmse: Leave-two-out RMSE in points; None if fewer than three runs would stay, and the prior would decide.
        line: If the runs lie along one line, that line: off it they say nothing.
    """

    model: Any
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
        mean, covariance = self.model.predict(kept, return_cov=True)
        return mean, covariance

    def draw(self, kept: Array, size: int, rng: np.random.Generator) -> Array:
        """Return accuracies `(size, M)` in percent from the posterior.

        Args:
            kept: `(M, 2)` fractions of attentions and activations.
            size: Number of draws.
            rng: What draws.
        """
        mean, covariance = self.posterior(kept)
        return rng.multivariate_normal(mean, covariance, size, check_valid="ignore", method="eigh")


def fit_gaussian(kept: Array, accuracy: Array, noise: float, line: Line | None = None) -> GaussianSurface:
    """Condition the process on the runs.

    Args:
        kept: `(N, 2)` fractions of attentions and activations that the runs kept.
        accuracy: `(N,)` in percent.
        noise: Standard deviation of one run in points.
        line: That the runs lie on, if predictions off it are to be refused.
    """
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import DotProduct, Matern

    kernel = QUADRATIC**2 * DotProduct(1.0) ** 2 + DEVIATION**2 * Matern(LENGTH, nu=2.5)
    model = GaussianProcessRegressor(kernel, alpha=noise**2, optimizer=None).fit(kept, accuracy)
    precision = np.linalg.inv(kernel(kept) + noise**2 * np.eye(len(kept)))
    errors = left_out_errors(precision, accuracy) if len(kept) >= 5 else None
    return GaussianSurface(model, pooled_rmse(errors), line)
