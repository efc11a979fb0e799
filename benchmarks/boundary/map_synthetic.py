"""Accuracy that an accuracy map leaves on the table, on synthetic surfaces whose best split is known.

    python -m benchmarks.boundary.map_synthetic

Surfaces have the scale of DeiT-B (12 layers, dense 81.8%, about a point per activation, a cliff after about five
attentions): their coefficients are drawn around what fits the table that BoundaryDPT publishes (arXiv 2607.03784). How
sharp the cliffs are, and how they move with the activations removed, the table leaves open; it was set so that the
paper's 22 runs with a polynomial leave about a quarter of a point of regret. That, and everything in the methods, was
settled on other seeds than those reported. Budgets are 6, 8 and 10 layers; each run has noise of 0.5 points. No
training; about two minutes on one core.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.data.real import parser, write
from prunerecover import MapPoint, fit_map
from prunerecover.boundary.designs import (
    Split,
    axes_and_staircase,
    feasible_splits,
    interleaved,
    one_type_at_a_time,
    spread,
)
from prunerecover.boundary.next_split import next_split
from prunerecover.cost.statistics import Interval, mean_interval
from prunerecover.display.markdown import table

LAYERS, DENSE, NOISE = 12, 81.8, 0.5
BUDGETS = (6, 8, 10)
TRIALS = 400  # per family
SEED = 20260
REPEATS = 8  # how often one split can be run

Array = NDArray[np.float64]
ATTENTION, ACTIVATION = np.meshgrid(np.arange(LAYERS + 1.0), np.arange(LAYERS + 1.0), indexing="ij")


def quadratic(rng: np.random.Generator) -> Array:
    """Losses of each type and their product; least squares with losses >= 0 on the table: 0, 0.92, 0.25, 0.015, 0."""
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
    """Draw a positive number around a typical one."""
    return float(typical * np.exp(rng.normal(0, spread)))


FAMILIES: dict[str, Callable[[np.random.Generator], Array]] = {
    "quadratic": quadratic,
    "cliff": cliff,
    "cliff + field": rough_cliff,
}


@dataclass(frozen=True)
class Trial:
    """A surface, a budget, and what every run would measure."""

    family: str
    truth: Array
    measured: Array
    splits: tuple[Split, ...]

    def run(self, split: Split, before: list[MapPoint]) -> MapPoint:
        """Measure a split; one that was run before gets new noise."""
        repeat = sum(point.split == split for point in before)
        return MapPoint(*split, float(self.measured[(*split, repeat)]))

    def run_all(self, splits: tuple[Split, ...]) -> list[MapPoint]:
        """Measure different splits."""
        return [self.run(split, []) for split in splits]


def make_trials(count: int, noise: float, seed: int) -> list[Trial]:
    rng = np.random.default_rng(seed)
    trials = []
    for family, draw in FAMILIES.items():
        for i in range(count):
            truth = draw(rng)
            measured = truth[..., None] + noise * rng.standard_normal((*truth.shape, REPEATS))
            splits = feasible_splits(LAYERS, n_remove=BUDGETS[i % len(BUDGETS)])
            trials.append(Trial(family, truth, np.clip(measured, 0, 100), splits))
    return trials


@dataclass(frozen=True)
class Outcome:
    """What a method picked, and after how many runs."""

    split: Split
    runs: int
    regret: Interval | None = None
    refused: bool = False


def from_map(points: list[MapPoint], trial: Trial, surface: str | None) -> Outcome:
    """Fit and pick; a map that is refused for predicting above dense picks all the same, and is counted."""
    fitted = fit_map(points, LAYERS, surface=surface)
    runs = sum(point.split != (0, 0) for point in points)
    try:
        pick, refused = fitted.best(splits=trial.splits), False
    except ValueError:
        pick, refused = replace(fitted, dense=None).best(splits=trial.splits), True
    return Outcome(pick.split, runs, pick.regret, refused)


def fixed(design: Callable[[Trial], tuple[Split, ...]], surface: str | None) -> Callable[[Trial], Outcome]:
    return lambda trial: from_map(trial.run_all(design(trial)), trial, surface)


def refined(runs: int, surface: str | None = None) -> Callable[[Trial], Outcome]:
    """Three spread runs, then each further one by `next_split`."""

    def play(trial: Trial) -> Outcome:
        points: list[MapPoint] = []
        while len(points) < runs:
            points.append(trial.run(next_split(points, trial.splits, LAYERS), points))
        return from_map(points, trial, surface)

    return play


def best_measured(runs: int) -> Callable[[Trial], Outcome]:
    """Spread runs and no surface: the best of what was run."""

    def play(trial: Trial) -> Outcome:
        points = trial.run_all(spread(trial.splits, runs))
        return Outcome(max(points, key=lambda point: point.accuracy).split, len(points))

    return play


METHODS: dict[str, Callable[[Trial], Outcome]] = {
    "paper's 22, polynomial": fixed(lambda _: axes_and_staircase(LAYERS), "polynomial"),
    "paper's 22, Gaussian process": fixed(lambda _: axes_and_staircase(LAYERS), "gaussian_process"),
    "Algorithm 1, polynomial": fixed(lambda t: one_type_at_a_time(LAYERS, sum(t.splits[0])), "polynomial"),
    "Algorithm 2, polynomial": fixed(lambda t: interleaved(LAYERS, sum(t.splits[0])), "polynomial"),
    "4 spread, parabola": fixed(lambda t: spread(t.splits, 4), "parabola"),
    "5 spread, parabola": fixed(lambda t: spread(t.splits, 5), "parabola"),
    "4 spread, Gaussian process": fixed(lambda t: spread(t.splits, 4), "gaussian_process"),
    "5 spread, Gaussian process": fixed(lambda t: spread(t.splits, 5), "gaussian_process"),
    "5 spread, best measured": best_measured(5),
    "whole line, best measured": best_measured(2 * LAYERS),
    "3 spread + 1 chosen, Gaussian process": refined(4),
    "3 spread + 2 chosen, Gaussian process (default)": refined(5),
    "3 spread + 2 chosen, parabola": refined(5, "parabola"),
    "3 spread + 3 chosen, Gaussian process": refined(6),
}
DEFAULT = "3 spread + 2 chosen, Gaussian process (default)"


def summarize(method: str, trials: list[Trial]) -> dict[str, Any]:
    """Play all trials with one method."""
    outcomes = [METHODS[method](trial) for trial in trials]
    truths = [np.array([trial.truth[split] for split in trial.splits]) for trial in trials]
    picks = [trial.splits.index(outcome.split) for trial, outcome in zip(trials, outcomes, strict=True)]
    regrets = np.array([truth.max() - truth[pick] for truth, pick in zip(truths, picks, strict=True)])
    near = [abs(int(truth.argmax()) - pick) <= 1 for truth, pick in zip(truths, picks, strict=True)]
    regret = mean_interval(regrets)
    families = np.array([trial.family for trial in trials])
    budgets = np.array([sum(trial.splits[0]) for trial in trials])
    known = [(o.regret, r) for o, r in zip(outcomes, regrets, strict=True) if o.regret is not None]
    return {
        "method": method,
        "runs": float(np.mean([outcome.runs for outcome in outcomes])),
        "regret": regret.value,
        "ci_low": regret.low,
        "ci_high": regret.high,
        "within_one_layer": float(np.mean(near)),
        "by_family": {name: float(regrets[families == name].mean()) for name in FAMILIES},
        "by_budget": {str(k): float(regrets[budgets == k].mean()) for k in BUDGETS},
        "expected_regret": float(np.mean([interval.value for interval, _ in known])) if known else None,
        "covered": float(np.mean([r <= interval.high for interval, r in known])) if known else None,
        "refused": float(np.mean([outcome.refused for outcome in outcomes])),
    }


def main() -> None:
    """Play, and write the results."""
    parser(__doc__).parse_args()
    trials = make_trials(TRIALS, NOISE, SEED)
    rows = [summarize(method, trials) for method in METHODS]
    others = [
        {"noise": noise, **summarize(method, make_trials(TRIALS, noise, SEED + 2))}
        for noise in (0.25, 1.0)
        for method in ("paper's 22, polynomial", "5 spread, parabola", DEFAULT)
    ]
    settings = {"trials_per_family": TRIALS, "noise": NOISE, "budgets": BUDGETS, "seed": SEED}
    write("map_synthetic", {**settings, "rows": rows, "other_noise": others}, markdown(rows, others))


def markdown(rows: list[dict[str, Any]], others: list[dict[str, Any]]) -> str:
    """Render the rows."""
    lines = [
        "# Regret of accuracy maps on synthetic surfaces",
        "",
        "`python -m benchmarks.boundary.map_synthetic`",
        "",
        f"{TRIALS * len(FAMILIES)} trials at the scale of DeiT-B, {NOISE} points of noise per run, budgets of 6, 8 and "
        "10 layers of 24. Regret: true accuracy of the best feasible split less that of the picked one, in points; "
        "also by family of surfaces. Runs leave out the dense model. Expected: the mean regret that the map announces; "
        "covered: how often its 95% interval reaches the true regret; refused: how often the map was refused for "
        "predicting above dense (it was scored all the same).",
        "",
        table(("runs and surface", *COLUMNS), ((row["method"], *_cells(row)) for row in rows)),
        "",
        "With another noise than the 0.5 points that the maps assume:",
        "",
        table(
            ("noise: runs and surface", *COLUMNS),
            ((f"{row['noise']}: {row['method']}", *_cells(row)) for row in others),
        ),
    ]
    return "\n".join(lines)


COLUMNS = ("runs", "regret (95% interval)", "within one layer", *FAMILIES, "expected", "covered", "refused")


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    announced = row["covered"] is not None
    return (
        f"{row['runs']:.1f}",
        f"{row['regret']:.3f} ({row['ci_low']:.3f}-{row['ci_high']:.3f})",
        f"{row['within_one_layer']:.1%}",
        *(f"{value:.3f}" for value in row["by_family"].values()),
        f"{row['expected_regret']:.3f}" if announced else "-",
        f"{row['covered']:.1%}" if announced else "-",
        f"{row['refused']:.1%}",
    )


if __name__ == "__main__":
    main()
