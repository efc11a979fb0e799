"""Synthetic accuracy surfaces with known best splits, with simulated runs and divergences.

Surfaces have the scale of DeiT-B (12 layers, dense 81.8%, about a point per activation, a cliff after about five
attentions): coefficients are drawn around a fit to BoundaryDPT's published table (arXiv 2607.03784). The table leaves
open how sharp the cliffs are and how they move with removed activations; these were set so that the paper's 22 runs
with a polynomial have about a quarter of a point of regret.

Divergences before training are proportional to a split's loss, up to a scatter of 8%: half of the variance is common to
neighbours, half is not. Networks may scatter more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from prunerecover import MapPoint
from prunerecover.boundary.designs import Split, feasible_splits

LAYERS, DENSE = 12, 81.8
BUDGETS = (6, 8, 10)
REPEATS = 8  # most runs of a split
SCATTER = 0.08  # scatter of divergences, as a share of the loss
LEAST = 0.3  # points: no split loses less, as far as divergences say

Array = NDArray[np.float64]
ATTENTION, ACTIVATION = np.meshgrid(np.arange(LAYERS + 1.0), np.arange(LAYERS + 1.0), indexing="ij")


def quadratic(rng: np.random.Generator) -> Array:
    """Draw losses of each type and of their product; a nonnegative fit to the table gives 0, 0.92, 0.25, 0.015, 0."""
    attention, joint = rng.exponential(0.15), rng.exponential(0.05)
    activation, attention2 = around(rng, 0.92), around(rng, 0.25)
    activation2 = around(rng, 0.015, 0.8)
    loss = attention * ATTENTION + activation * ACTIVATION + joint * ATTENTION * ACTIVATION
    return DENSE - loss - attention2 * ATTENTION**2 - activation2 * ACTIVATION**2


def cliff(rng: np.random.Generator) -> Array:
    """Linear losses and a soft cliff, earlier the more activations are gone; fit: 0.35, 1.0, slope 4.2 at 4.75."""
    attention, activation, joint = around(rng, 0.35), around(rng, 1.0), rng.exponential(0.02)
    slope, softness = around(rng, 4.2), around(rng, 0.6)
    position, pull = rng.uniform(2.75, 6.75), rng.uniform(0.0, 0.5)
    beyond = np.logaddexp(0, (ATTENTION + pull * ACTIVATION - position) / softness)
    linear = attention * ATTENTION + activation * ACTIVATION + joint * ATTENTION * ACTIVATION
    return DENSE - linear - slope * softness * (beyond - np.logaddexp(0, -position / softness))


def rough_cliff(rng: np.random.Generator) -> Array:
    """A cliff plus a smooth random field of 0.6 points with a length of 3 layers, zero at the dense model."""
    field = 0.6 * field_root() @ rng.normal(size=(LAYERS + 1, LAYERS + 1)) @ field_root().T
    return cliff(rng) + field - field[0, 0]


@cache
def field_root() -> Array:
    distance = np.subtract.outer(np.arange(LAYERS + 1), np.arange(LAYERS + 1))
    return np.linalg.cholesky(np.exp(-0.5 * (distance / 3) ** 2) + 1e-8 * np.eye(LAYERS + 1))


def around(rng: np.random.Generator, typical: float, spread: float = 0.4) -> float:
    """Draw a positive number around a typical value."""
    return float(typical * np.exp(rng.normal(0, spread)))


FAMILIES: dict[str, Callable[[np.random.Generator], Array]] = {
    "quadratic": quadratic,
    "cliff": cliff,
    "cliff + field": rough_cliff,
}


@dataclass(frozen=True)
class Trial:
    """Surface, budget, results of all runs, and the divergence of every split."""

    family: str
    truth: Array
    measured: Array
    splits: tuple[Split, ...]
    divergences: dict[Split, float]

    def run(self, split: Split, before: list[MapPoint]) -> MapPoint:
        """Measure a split; repeated runs have new noise."""
        repeat = sum(point.split == split for point in before)
        return MapPoint(*split, float(self.measured[(*split, repeat)]))

    def run_all(self, splits: tuple[Split, ...]) -> list[MapPoint]:
        """Measure different splits."""
        return [self.run(split, []) for split in splits]


def make_trials(count: int, noise: float, seed: int, scatter: float = SCATTER) -> list[Trial]:
    """Draw surfaces, `count` of each family, with simulated runs and divergences."""
    rng, divergence_rng = np.random.default_rng(seed), np.random.default_rng((seed, 1))
    trials = []
    for family, draw in FAMILIES.items():
        for i in range(count):
            truth = draw(rng)
            measured = truth[..., None] + noise * rng.standard_normal((*truth.shape, REPEATS))
            splits = feasible_splits(LAYERS, n_remove=BUDGETS[i % len(BUDGETS)])
            divergences = divergences_of(truth, splits, scatter, divergence_rng)
            trials.append(Trial(family, truth, np.clip(measured, 0, 100), splits, divergences))
    return trials


def divergences_of(
    truth: Array, splits: tuple[Split, ...], scatter: float, rng: np.random.Generator
) -> dict[Split, float]:
    """Draw divergences of splits before training, in points of loss; the unit does not matter."""
    lost = np.maximum([DENSE - truth[split] for split in splits], LEAST)
    common = (field_root() @ rng.standard_normal(LAYERS + 1))[[split[0] for split in splits]]
    off = scatter * np.sqrt(0.5) * (common + rng.standard_normal(len(splits)))
    return dict(zip(splits, lost * np.exp(off), strict=True))


def shuffled(trials: list[Trial], seed: int) -> list[Trial]:
    """Permute the divergences of each surface among its splits."""
    rng = np.random.default_rng(seed)
    return [
        replace(t, divergences=dict(zip(t.splits, rng.permutation(list(t.divergences.values())), strict=True)))
        for t in trials
    ]


def exchanged(trials: list[Trial], seed: int) -> list[Trial]:
    """Give each surface the divergences of another surface with the same budget: smooth, and without information."""
    rng = np.random.default_rng(seed)
    found = list(trials)
    for budget in {trial.splits for trial in trials}:
        places = [i for i, trial in enumerate(trials) if trial.splits == budget]
        for place, other in zip(places, rng.permutation(places), strict=True):
            found[place] = replace(trials[place], divergences=trials[other].divergences)
    return found
