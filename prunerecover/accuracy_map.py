"""Predict the accuracy of every split of a depth budget from a few short training runs, and pick the best.

The Model Accuracy Predictor of BoundaryDPT (arXiv 2607.03784): how much attentions and activations hurt cannot be
compared before recovery, so a few splits are trained for a short while, a surface is fitted to their accuracies
(`surfaces`, `gaussian_surface`), and all feasible splits (`designs`) are compared on it. We add an interval for what
the pick may cost, and refuse what the paper's own table warns of: degrees that the runs do not determine, and
predictions above dense.

Nothing is trained here. A map knows only what its runs know: runs shorter for one type than it needs shift the pick.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from prunerecover.designs import Layers, Split, feasible_splits, layer_counts
from prunerecover.gaussian_surface import fit_gaussian
from prunerecover.statistics import Interval
from prunerecover.surfaces import Array, Surface, constraint_line, fit_parabola, fit_polynomial

SURFACES = ("polynomial", "gaussian_process", "parabola")
DENSE = (0, 0)
DRAWS = 4000


@dataclass(frozen=True)
class MapPoint:
    """The result of one run.

    Args:
        attention: Number of attentions removed.
        activation: Number of activations removed.
        accuracy: In percent.

    Raises:
        ValueError: If a number is negative, or the accuracy is not a percentage.
    """

    attention: int
    activation: int
    accuracy: float

    def __post_init__(self) -> None:
        """Check the numbers."""
        if min(self.split) < 0 or not 0 <= self.accuracy <= 100:
            raise ValueError(
                f"Expected numbers removed >= 0 and an accuracy between 0 and 100 percent, but got {self}. "
                "Did the run diverge, or are kept and removed mixed up?"
            )

    @property
    def split(self) -> Split:
        """(attention, activation)."""
        return self.attention, self.activation


@dataclass(frozen=True)
class Pick:
    """The best split of a budget.

    Args:
        attention: Number of attentions to remove.
        activation: Number of activations to remove.
        predicted: Accuracy in percent.
        regret: How many points better the truly best feasible split may be: the expectation and a 95% interval.
    """

    attention: int
    activation: int
    predicted: float
    regret: Interval

    @property
    def split(self) -> Split:
        """(attention, activation)."""
        return self.attention, self.activation


@dataclass(frozen=True)
class AccuracyMap:
    """Accuracies of all splits, as predicted from the runs; made by `fit_map`.

    Args:
        points: The runs.
        layers: Number of attention and activation units of the dense model.
        surface: Fitted to the runs.
        dense: Accuracy of the dense model in percent, if known.
        noise: Standard deviation of one run in points.
        seed: Of the bootstrap.
    """

    points: tuple[MapPoint, ...]
    layers: tuple[int, int]
    surface: Surface
    dense: float | None
    noise: float
    seed: int

    @property
    def cv_rmse(self) -> float | None:
        """Leave-two-out RMSE in points, pooled over all pairs of runs; None if there are too few runs to leave out."""
        return self.surface.cv_rmse

    @property
    def degree(self) -> int | None:
        """Degree of the polynomial; None for a Gaussian process."""
        return getattr(self.surface, "degree", None)

    @property
    def coefficients(self) -> tuple[float, ...] | None:
        """Of 1, a, t, a^2, at, t^2, ... (of 1, a, a^2 for a parabola); None for a Gaussian process."""
        return getattr(self.surface, "coefficients", None)

    def predict(self, a: float, t: float) -> float:
        """Return the predicted accuracy in percent.

        Args:
            a: Kept fraction of the attentions.
            t: Kept fraction of the activations.

        Raises:
            ValueError: If a fraction is not between 0 and 1, or the runs lie along a line that (a, t) is off.
        """
        if not (0 <= a <= 1 and 0 <= t <= 1):
            raise ValueError(f"Expected kept fractions between 0 and 1, but got a={a}, t={t}. Counts go to `best`.")
        return float(self.surface.predict(np.array([[a, t]]))[0])

    def best(
        self, *, n_remove: int | None = None, n_keep: int | None = None, splits: Iterable[Split] | None = None
    ) -> Pick:
        """Compare all feasible splits and return the best; of equal ones, that which removes fewest attentions.

        Args:
            n_remove: Number of units to remove, both types together.
            n_keep: Number of units to keep, both types together.
            splits: The feasible splits themselves, for instance `affordable_splits(...)`. Exactly one of the three.

        Raises:
            ValueError: If none or several are given, the budget is infeasible, a split is predicted above dense by
                more than the noise of the runs, or the runs lie along the line of another budget.
        """
        feasible = self._feasible(n_remove, n_keep, splits)
        kept = kept_fractions(feasible, self.layers)
        predicted = self.surface.predict(kept)
        chosen = int(np.argmax(np.round(predicted, 9)))
        self._check_below_dense(feasible[chosen], float(predicted[chosen]))
        drawn = self.surface.draw(kept, DRAWS, np.random.default_rng(self.seed))
        losses = drawn.max(axis=1) - drawn[:, chosen]
        low, high = np.quantile(losses, (0.025, 0.975))
        regret = Interval(float(losses.mean()), float(low), float(high))
        return Pick(*feasible[chosen], float(predicted[chosen]), regret)

    def _feasible(self, n_remove: int | None, n_keep: int | None, splits: Iterable[Split] | None) -> tuple[Split, ...]:
        if splits is None:
            return feasible_splits(self.layers, n_remove=n_remove, n_keep=n_keep)
        listed = tuple(sorted(set(splits)))
        if n_remove is not None or n_keep is not None or not listed:
            raise ValueError(
                f"Expected exactly one of n_remove, n_keep and a non-empty list of splits, but got "
                f"n_remove={n_remove}, n_keep={n_keep}, {len(listed)} splits. The splits are the budget."
            )
        check_inside(listed, self.layers)
        return listed

    def _check_below_dense(self, split: Split, predicted: float) -> None:
        margin = max(self.cv_rmse or 0.0, self.noise)
        measured = max(point.accuracy for point in self.points)  # training a little more may help a dense model, too
        if self.dense is not None and predicted > max(self.dense, measured) + margin:
            raise ValueError(
                f"Expected no split above the dense model's {self.dense:.2f}%, but got {predicted:.2f}% predicted for "
                f"{split[0]} attentions and {split[1]} activations removed, {margin:.2f} points being noise. The "
                "surface extrapolates: add runs among the feasible splits."
            )


def fit_map(
    points: Iterable[MapPoint],
    layers: Layers,
    *,
    degrees: Sequence[int] = (1, 2, 3, 4),
    surface: str | None = None,
    splits: Iterable[Split] = (),
    dense: float | None = None,
    noise: float = 0.5,
    seed: int = 0,
) -> AccuracyMap:
    """Fit a surface to the accuracies of short training runs.

    Args:
        points: The runs; the dense model may be among them.
        layers: Number of attention and activation units of the dense model; one number stands for both.
        degrees: Degrees of the polynomial to choose from.
        surface: "polynomial" is the paper's, "parabola" holds along one line, "gaussian_process" both there and in the
            plane. By default a Gaussian process when the runs lie along the line of one budget, where it has the least
            regret (`benchmarks/map_synthetic.py`), and a polynomial otherwise.
        splits: All splits of the budget that the runs are for, if they are for one: what holds along its line holds for
            each of them. By default the line is that of the runs.
        dense: Accuracy of the dense model in percent after a run like the others, if that is not among the points. It
            is not fitted, only kept above.
        noise: Standard deviation of the accuracy of one run, in points; from two runs that differ in seed only.
        seed: Of the bootstrap.

    Raises:
        ValueError: If a point does not fit the model, the runs do not determine the surface, or an argument is unknown.

    >>> runs = [MapPoint(0, 8, 72.0), MapPoint(3, 5, 75.0), MapPoint(5, 3, 74.0), MapPoint(8, 0, 65.0)]
    >>> fit_map(runs, 12, dense=81.8).best(n_remove=8).split
    (3, 5)
    """
    runs, counts = tuple(points), layer_counts(layers)
    _check_arguments(runs, counts, degrees, surface, noise)
    if dense is None:
        measured = [point.accuracy for point in runs if point.split == DENSE]
        dense = float(np.mean(measured)) if measured else None
    fitted = _fit_surface(runs, counts, degrees, surface, tuple(splits), noise)
    return AccuracyMap(runs, counts, fitted, dense, noise, seed)


def kept_fractions(splits: Iterable[Split], layers: tuple[int, int]) -> Array:
    """Return the kept fractions `(N, 2)` of attentions and activations."""
    return 1 - np.array(tuple(splits), dtype=np.float64).reshape(-1, 2) / layers


def check_inside(splits: Iterable[Split], layers: tuple[int, int]) -> None:
    """Raise ValueError if the model does not have the units that a split removes."""
    for split in splits:
        if not (0 <= split[0] <= layers[0] and 0 <= split[1] <= layers[1]):
            raise ValueError(
                f"Expected splits (attentions, activations removed) within the {layers[0]} and {layers[1]} units of "
                f"the model, but got {split}. Are kept and removed mixed up?"
            )


def check_fit(surface: str | None, noise: float) -> None:
    """Raise ValueError if there is no such surface, or the noise is not above 0."""
    if surface not in (None, *SURFACES):
        raise ValueError(f"Expected a surface among {', '.join(SURFACES)} or None, but got {surface!r}.")
    if not noise > 0:
        raise ValueError(f"Expected a noise above 0 points, but got {noise}. Half a point is usual for short runs.")


def _fit_surface(
    runs: Sequence[MapPoint],
    layers: tuple[int, int],
    degrees: Sequence[int],
    surface: str | None,
    splits: Sequence[Split],
    noise: float,
) -> Surface:
    kept = kept_fractions((run.split for run in runs), layers)
    accuracy = np.array([run.accuracy for run in runs])
    pruned = np.array([run.split != DENSE for run in runs])
    budget = kept_fractions(splits, layers) if splits else None
    line = constraint_line(kept[pruned], 1 / layers[1], budget)
    if surface == "gaussian_process" or (surface is None and line is not None):
        return fit_gaussian(kept, accuracy, noise, line)
    if surface != "parabola":
        return fit_polynomial(kept, accuracy, degrees, noise)
    if line is None:
        raise ValueError(
            f"Expected at least three different splits along the line of one budget for a parabola, but got "
            f"{[run.split for run in runs]}. Choose them with `spread`, or fit surface='polynomial'."
        )
    return fit_parabola(kept[pruned], accuracy[pruned], line, noise)


def _check_arguments(
    runs: Sequence[MapPoint], layers: tuple[int, int], degrees: Sequence[int], surface: str | None, noise: float
) -> None:
    if not runs:
        raise ValueError("Expected at least one run, but got none. `spread` and `next_split` choose the first ones.")
    check_inside((run.split for run in runs), layers)
    if max(run.accuracy for run in runs) <= 1:
        raise ValueError("Expected accuracies in percent, but got none above 1. Multiply shares by 100.")
    if not degrees or min(degrees) < 1:
        raise ValueError(f"Expected degrees of at least 1, but got {tuple(degrees)}. The paper takes 1 to 4.")
    check_fit(surface, noise)
