"""Map of predicted accuracies of all splits of a depth budget, from a few short training runs.

The Model Accuracy Predictor of BoundaryDPT (arXiv 2607.03784): the damage of removed attentions and activations cannot
be compared before recovery, so a few splits are trained for a short while, a surface is fitted to the accuracies
(`surfaces`, `gaussian_surface`), and all feasible splits (`designs`) are compared on the surface. We add an interval
for the regret of the pick, and refuse the pitfalls in the paper's own table: undetermined degrees, and predictions
above dense.

`fit_map.fit_map` makes the map. Nothing is trained here. A map is as good as the runs: runs too short for one type
shift the pick.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from prunerecover.boundary.designs import Split, feasible_splits
from prunerecover.boundary.map_points import MapPoint, Pick, check_inside, kept_fractions
from prunerecover.boundary.surfaces import Surface
from prunerecover.cost.statistics import Interval

DRAWS = 4000


@dataclass(frozen=True)
class AccuracyMap:
    """Predicted accuracies of all splits; made by `fit_map`.

    Args:
        points: Results of the runs.
        layers: Number of attention and activation units of the dense model.
        surface: Surface fitted to the runs.
        dense: Accuracy of the dense model in percent, if known.
        noise: Standard deviation of a run in points.
        seed: Seed of the bootstrap.
    """

    points: tuple[MapPoint, ...]
    layers: tuple[int, int]
    surface: Surface
    dense: float | None
    noise: float
    seed: int

    @property
    def cv_rmse(self) -> float | None:
        """Leave-two-out RMSE in points, pooled over all pairs of runs; None for too few runs."""
        return self.surface.cv_rmse

    @property
    def degree(self) -> int | None:
        """Degree of the polynomial; None for a Gaussian process."""
        return getattr(self.surface, "degree", None)

    @property
    def coefficients(self) -> tuple[float, ...] | None:
        """Coefficients of 1, a, t, a^2, at, t^2, ... (of 1, a, a^2 for a parabola); None for a Gaussian process."""
        return getattr(self.surface, "coefficients", None)

    def predict(self, a: float, t: float) -> float:
        """Return the predicted accuracy in percent.

        Args:
            a: Kept fraction of the attentions.
            t: Kept fraction of the activations.

        Raises:
            ValueError: If a fraction is not between 0 and 1, or (a, t) is off the line of the runs.
        """
        if not (0 <= a <= 1 and 0 <= t <= 1):
            raise ValueError(f"Expected kept fractions between 0 and 1, but got a={a}, t={t}. Counts go to `best`.")
        return float(self.surface.predict(np.array([[a, t]]))[0])

    def best(
        self, *, n_remove: int | None = None, n_keep: int | None = None, splits: Iterable[Split] | None = None
    ) -> Pick:
        """Compare all feasible splits and return the best; among equal splits, with the fewest removed attentions.

        Args:
            n_remove: Number of units to remove, both types together.
            n_keep: Number of units to keep, both types together.
            splits: Feasible splits, for instance from `affordable_splits(...)`. Exactly one of the three is given.

        Raises:
            ValueError: If none or several are given, the budget is infeasible, a split is predicted above dense by more
                than the noise of the runs, or the runs lie along the line of another budget.
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
