"""Surfaces through measured accuracies: polynomials in the kept fractions, and a parabola along one line of them.

BoundaryDPT (arXiv 2607.03784) predicts the accuracy of a split by a polynomial sum_{i+j<=k} theta_ij a^i t^j, where a
and t are the kept fractions of attentions and activations, and chooses k by leave-two-out cross-validation. Both are
least squares, so every left-out error has a closed form and nothing is refitted. Degrees that the runs do not determine
are refused. A Gaussian process is in `gaussian_surface`; `accuracy_map` puts surfaces to use.
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
    """What an accuracy map needs of a fitted surface. `kept` is `(M, 2)`: fractions of attentions and activations."""

    @property
    def cv_rmse(self) -> float | None:
        """Leave-two-out RMSE in points, pooled over all pairs of runs; None if there are too few runs to leave out."""

    def predict(self, kept: Array) -> Array:
        """Return the predicted accuracies `(M,)` in percent."""

    def draw(self, kept: Array, size: int, rng: np.random.Generator) -> Array:
        """Return accuracies `(size, M)` that the runs leave possible: where to doubt the prediction, and how much.

        Args:
            kept: `(M, 2)` fractions of attentions and activations.
            size: Number of draws.
            rng: What draws.
        """


@dataclass(frozen=True)
class Line:
    """A line t = intercept + slope * a through kept fractions, and how far off it a split may lie.

    Args:
        intercept: Of t at a = 0.
        slope: Negative along a budget: what one type keeps, the other must lose.
        tolerance: In t; one layer, or a step of a budget in cost.
    """

    intercept: float
    slope: float
    tolerance: float

    def contains(self, kept: Array) -> NDArray[np.bool_]:
        """Return which splits `(M,)` lie on the line."""
        return np.abs(kept[:, 1] - self.intercept - self.slope * kept[:, 0]) <= self.tolerance + SINGULAR

    def check(self, kept: Array) -> None:
        """Raise ValueError if a split is off the line, where nothing was measured."""
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
    """A least-squares fit to measured accuracies.

    Args:
        exponents: Of (a, t), one pair per coefficient.
        coefficients: In points.
        refit: `(P, N)` takes the accuracies of the N runs to the P coefficients.
        sigma: Standard deviation of a run around the surface, in points.
        cv_rmse: Leave-two-out RMSE in points; None if there are too few runs.
        line: For a parabola, the line that it holds on.
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
            ValueError: If the surface holds on a line only, and a split is off it.
        """
        predicted: Array = self._terms(kept) @ np.array(self.coefficients)
        return predicted

    def draw(self, kept: Array, size: int, rng: np.random.Generator) -> Array:
        """Return predictions `(size, M)` after refits to accuracies drawn around the surface: a parametric bootstrap.

        Resampling the residuals themselves would say little: with four runs and three coefficients they are one number.

        Args:
            kept: `(M, 2)` fractions of attentions and activations.
            size: Number of refits.
            rng: What draws the accuracies.
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
    """Fit the degree with the least leave-two-out error; the lower one of two that are equal up to rounding.

    Args:
        kept: `(N, 2)` fractions of attentions and activations that the runs kept.
        accuracy: `(N,)` in percent.
        degrees: To choose from. One that the runs do not determine, with all of them or without some pair, is left out.
        noise: Standard deviation of one run in points; the surface is never taken to be more certain than that.

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
            f"Expected runs that determine a polynomial of one of the degrees asked for, but got {len(kept)} runs: "
            f"{'; '.join(reasons)}. Add runs that remove both types in other proportions, allow lower degrees, or use "
            "surface='gaussian_process'."
        )
    return min(fitted, key=lambda surface: (round(surface.cv_rmse or 0.0, 9), surface.degree))


def fit_parabola(kept: Array, accuracy: Array, line: Line, noise: float) -> PolynomialSurface:
    """Fit 1, a, a^2 to runs on one line. It predicts nothing off that line.

    Args:
        kept: `(N, 2)` fractions of attentions and activations that the runs kept.
        accuracy: `(N,)` in percent.
        line: That the runs lie on, as found by `constraint_line`.
        noise: Standard deviation of one run in points.
    """
    return _least_squares(kept, accuracy, PARABOLA, noise, line)


def constraint_line(kept: Array, tolerance: float, budget: Array | None = None) -> Line | None:
    """Return the falling line that at least three different runs lie on, up to the tolerance; None if there is none.

    Args:
        kept: `(N, 2)` fractions of attentions and activations.
        tolerance: In the fraction of activations; one layer.
        budget: `(M, 2)`, all splits of a budget. The line is then theirs, and the tolerance at least as wide as the
            steps of a budget in cost.
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
    """Return how far every pair of runs lies from a fit to all the others, in closed form.

    For a set S of runs, the error of the fit without them is inv(Q_SS) (Q y)_S, where Q is I - H for least squares with
    hat matrix H, and the inverse covariance of the runs for a Gaussian process.

    Args:
        precision: `(N, N)`, Q.
        accuracy: `(N,)`, y.

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
    """Return the root of the mean squared error over all pairs and both runs of each."""
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
    """Say why the coefficients are not determined by the runs, or not without some pair of them; None if they are."""
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
    """Return which of the symmetric blocks `(B, 2, 2)` are singular."""
    return np.asarray(np.linalg.eigvalsh(blocks)[:, 0] <= SINGULAR)
