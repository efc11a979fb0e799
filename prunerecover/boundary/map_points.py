"""Runs and picks of an accuracy map: removed attentions and activations, with a measured or predicted accuracy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from prunerecover.boundary.designs import Split
from prunerecover.boundary.surfaces import Array
from prunerecover.cost.statistics import Interval


@dataclass(frozen=True)
class MapPoint:
    """Result of a run.

    Args:
        attention: Number of removed attentions.
        activation: Number of removed activations.
        accuracy: Accuracy in percent.

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
        """Pair (attention, activation)."""
        return self.attention, self.activation


@dataclass(frozen=True)
class Pick:
    """Best split of a budget.

    Args:
        attention: Number of attentions to remove.
        activation: Number of activations to remove.
        predicted: Predicted accuracy in percent.
        regret: Expected gap in points to the truly best feasible split, with a 95% interval.
    """

    attention: int
    activation: int
    predicted: float
    regret: Interval

    @property
    def split(self) -> Split:
        """Pair (attention, activation)."""
        return self.attention, self.activation


def kept_fractions(splits: Iterable[Split], layers: tuple[int, int]) -> Array:
    """Return the kept fractions `(N, 2)` of attentions and activations."""
    return 1 - np.array(tuple(splits), dtype=np.float64).reshape(-1, 2) / layers


def check_inside(splits: Iterable[Split], layers: tuple[int, int]) -> None:
    """Raise ValueError if a split removes more units than the model has."""
    for split in splits:
        if not (0 <= split[0] <= layers[0] and 0 <= split[1] <= layers[1]):
            raise ValueError(
                f"Expected splits (attentions, activations removed) within the {layers[0]} and {layers[1]} units of "
                f"the model, but got {split}. Are kept and removed mixed up?"
            )
