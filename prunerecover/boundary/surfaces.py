"""Surfaces through measured accuracies: polynomials in the kept fractions, and a parabola along a line.

BoundaryDPT (arXiv 2607.03784) predicts the accuracy of a split by a polynomial sum_{i+j<=k} theta_ij a^i t^j, where a
and t are the kept fractions of attentions and activations, and chooses k by leave-two-out cross-validation. Both fits
are least squares, so every left-out error has a closed form without a refit. Degrees not determined by the runs are
refused. A Gaussian process is in `gaussian_surface`; `accuracy_map` uses the surfaces.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
SINGULAR = 1e-9  # an eigenvalue below this is rounding; those of I - H lie between 0 and 1
PARABOLA = ((0, 0), (1, 0), (2, 0))


class Surface(Protocol):
    """Interface of a fitted surface. `kept` is `(M, 2)`: fractions of attentions and activations."""

    @property
    def cv_rmse(self) -> float | None:
        """Leave-two-out RMSE in points, pooled over all pairs of runs; None for too few runs."""

    def predict(self, kept: Array) -> Array:
        """Return the predicted accuracies `(M,)` in percent."""

    def draw(self, kept: Array, size: int, rng: np.random.Generator) -> Array:
        """Return plausible accuracies `(size, M)` given the runs: a measure of the uncertainty of the prediction.

        Args:
            kept: Kept fractions of attentions and activations, `(M, 2)`.
            size: Number of draws.
            rng: Random generator.
        """


@dataclass(frozen=True)
class Line:
    """Line t = intercept + slope * a through kept fractions, with a tolerance for splits.

    Args:
        intercept: Value of t at a = 0.
        slope: Slope, negative along a budget: the more units of one type are kept, the fewer of the other.
        tolerance: Tolerance in t; one layer, or a step of a budget in cost.
    """

    intercept: float
    slope: float
    tolerance: float

    def contains(self, kept: Array) -> NDArray[np.bool_]:
        """Return a mask `(M,)` of the splits on the line."""
        return np.abs(kept[:, 1] - self.intercept - self.slope * kept[:, 0]) <= self.tolerance + SINGULAR

    def check(self, kept: Array) -> None:
        """Raise ValueError if a split is off the line, away from all measurements."""
        on = self.contains(kept)
        if not on.all():
            a, t = kept[~on][0]
            raise ValueError(
                f"Expected splits close to the line that was measured, but got kept fractions a={a:.3f}, "
                f"t={t:.3f}, where the line has t={self.intercept + self.slope * a:.3f}. Measure runs along this "
                "budget's line, or over the plane for several budgets."
            )


@dataclass(frozen=True, eq=False)
class PolynomialSurface:
    """Least-squares fit to measured accuracies.

    Args:
        exponents: Exponents of (a, t), a pair per coefficient.
        coefficients: Coefficients in points.
        refit: Matrix from the accuracies of the N runs to the P coefficients, `(P, N)`.
        sigma: Standard deviation of a run around the surface, in points.
        cv_rmse: Leave-two-out RMSE in points; None for too few runs.
        line: Line of a parabola, for predictions on the line only.
    """

    exponents: tuple[tuple[int, int], ...]
    coefficients: tuple[float, ...]
    refit: Array
    sigma: float
    cv_rmse: float | None
    line: Line | None = None

    @property
    def degree(self) -> int:
        """Degree of the polynomial."""
        return max(i + j for i, j in self.exponents)

    def predict(self, kept: Array) -> Array:
        """Return the predicted accuracies `(M,)`.

        Raises:
            ValueError: If the surface is for a line only, and a split is off the line.
        """
        predicted: Array = self._terms(kept) @ np.array(self.coefficients)
        return predicted

    def draw(self, kept: Array, size: int, rng: np.random.Generator) -> Array:
        """Return predictions `(size, M)` after refits to accuracies drawn around the surface: a parametric bootstrap.

        Resampling of residuals would show little: with four runs and three coefficients the residuals are a single
        number.

        Args:
            kept: Kept fractions of attentions and activations, `(M, 2)`.
            size: Number of refits.
            rng: Random generator of the accuracies.
        """
        noise = self.sigma * rng.standard_normal((size, self.refit.shape[1]))
        return (np.array(self.coefficients) + noise @ self.refit.T) @ self._terms(kept).T

    def _terms(self, kept: Array) -> Array:
        if self.line is not None:
            self.line.check(kept)
        return _terms(kept, self.exponents)


def monomials(degree: int) -> tuple[tuple[int, int], ...]:
    """Return the exponents of a bivariate polynomial: 1, a, t, a^2, at, t^2, ...

    >>> monomials(2)
    ((0, 0), (1, 0), (0, 1), (2, 0), (1, 1), (0, 2))
    """
    return tuple((i, total - i) for total in range(degree + 1) for i in range(total, -1, -1))


def fit_polynomial(kept: Array, accuracy: Array, degrees: Iterable[int], noise: float) -> PolynomialSurface:
    """Fit the degree with the least leave-two-out error; the lower degree of two equal up to rounding.

    Args:
        kept: Kept fractions of attentions and activations in the runs, `(N, 2)`.
        accuracy: Accuracies in percent, `(N,)`.
        degrees: Degrees to choose from. A degree not determined by the runs, with all runs or without some pair, is
            left out.
        noise: Standard deviation of a run in points, a lower limit for the uncertainty of the surface.

    Raises:
        ValueError: If no degree is left.
    """
    fitted, reasons = [], []
    for degree in sorted(set(degrees)):
        terms = _terms(kept, monomials(degree))
        reason = _undetermined(terms)
        if reason is None:
            fitted.append(_least_squares(kept, accuracy, monomials(degree), noise))
        else:
            reasons.append(f"degree {degree} has {reason}")
    if not fitted:
        raise ValueError(
            f"Expected runs that determine a polynomial, but got {len(kept)} runs: "
            f"{'; '.join(reasons)}. Add runs that remove both types in other proportions, or use "
            "surface='gaussian_process'."
        )
    return min(fitted, key=lambda surface: (round(surface.cv_rmse or 0.0, 9), surface.degree))


def fit_parabola(kept: Array, accuracy: Array, line: Line, noise: float) -> PolynomialSurface:
    """Fit 1, a, a^2 to runs on a line, for predictions on the line only.

    Args:
        kept: Kept fractions of attentions and activations in the runs, `(N, 2)`.
        accuracy: Accuracies in percent, `(N,)`.
        line: Line of the runs, from `constraint_line`.
        noise: Standard deviation of a run in points.
    """
    return _least_squares(kept, accuracy, PARABOLA, noise, line)


def constraint_line(kept: Array, tolerance: float, budget: Array | None = None) -> Line | None:
    """Return the falling line through at least three different runs, up to the tolerance; None without a line.

    Args:
        kept: Kept fractions of attentions and activations, `(N, 2)`.
        tolerance: Tolerance in the fraction of activations; one layer.
        budget: Kept fractions of all splits of a budget, `(M, 2)`. The line is then fitted to these splits, with a
            tolerance at least as wide as the steps of a budget in cost.
    """
    if len(np.unique(kept[:, 0])) < len(PARABOLA):
        return None
    known = kept if budget is None else budget
    slope, intercept = np.polyfit(known[:, 0], known[:, 1], 1)
    if budget is not None:
        tolerance = max(tolerance, float(np.abs(known[:, 1] - intercept - slope * known[:, 0]).max()))
    line = Line(float(intercept), float(slope), tolerance)
    return line if slope < 0 and line.contains(kept).all() else None


def left_out_errors(precision: Array, accuracy: Array) -> Array | None:
    """Return the distance of every pair of runs from a fit to all other runs, in closed form.

    For a set S of runs, the error of the fit without S is inv(Q_SS) (Q y)_S, where Q is I - H for least squares with
    hat matrix H, and the inverse covariance of the runs for a Gaussian process.

    Args:
        precision: Matrix Q, `(N, N)`.
        accuracy: Accuracies y, `(N,)`.

    Returns:
        `(N (N - 1) / 2, 2)` in points, pairs in the order of `itertools.combinations`; None if the fit without some
        pair is not determined, or there is no pair.
    """
    pairs = _pairs(len(accuracy))
    blocks = precision[pairs[:, :, None], pairs[:, None, :]]
    if not len(pairs) or _singular(blocks).any():
        return None
    errors = np.linalg.solve(blocks, (precision @ accuracy)[pairs][..., None])[..., 0]
    return np.asarray(errors, dtype=np.float64)


def pooled_rmse(errors: Array | None) -> float | None:
    """Return the root of the mean squared error over all pairs and both runs of each pair."""
    return None if errors is None else float(np.sqrt(np.mean(errors**2)))


def _least_squares(
    kept: Array, accuracy: Array, exponents: tuple[tuple[int, int], ...], noise: float, line: Line | None = None
) -> PolynomialSurface:
    terms = _terms(kept, exponents)
    refit = np.asarray(np.linalg.pinv(terms), dtype=np.float64)
    residual_maker = np.eye(len(kept)) - terms @ refit
    coefficients = np.linalg.lstsq(terms, accuracy)[0]
    freedom = len(kept) - len(exponents)
    residuals = accuracy - terms @ coefficients
    sigma = float(np.sqrt(residuals @ residuals / freedom)) if freedom else 0.0
    error = pooled_rmse(left_out_errors(residual_maker, accuracy))
    return PolynomialSurface(exponents, tuple(map(float, coefficients)), refit, max(sigma, noise), error, line)


def _terms(kept: Array, exponents: Iterable[tuple[int, int]]) -> Array:
    return np.stack([kept[:, 0] ** i * kept[:, 1] ** j for i, j in exponents], axis=1)


def _undetermined(terms: Array) -> str | None:
    """Return the reason for undetermined coefficients, with all runs or without some pair; None if determined."""
    runs, size = terms.shape
    rank = int(np.linalg.matrix_rank(terms))
    if rank < size:
        return f"rank {rank} of {size} coefficients"
    residual_maker = np.eye(runs) - terms @ np.linalg.pinv(terms)
    pairs = _pairs(runs)
    bad = _singular(residual_maker[pairs[:, :, None], pairs[:, None, :]])
    if bad.any():
        first, second = pairs[np.argmax(bad)] + 1
        return f"less than rank {size} without runs {first} and {second}, so leave-two-out cannot judge it"
    return None


def _pairs(runs: int) -> NDArray[np.int64]:
    return np.array(list(combinations(range(runs), 2)), dtype=np.int64).reshape(-1, 2)


def _singular(blocks: Array) -> NDArray[np.bool_]:
    """Return a mask of the singular blocks among symmetric blocks `(B, 2, 2)`."""
    return np.asarray(np.linalg.eigvalsh(blocks)[:, 0] <= SINGULAR)
