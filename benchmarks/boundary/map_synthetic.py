"""Accuracy that an accuracy map leaves on the table, on synthetic surfaces whose best split is known.

    python -m benchmarks.boundary.map_synthetic

What the surfaces and the divergences are is in `synthetic_surfaces`. Everything in the methods was settled on other
seeds than those reported. Budgets are 6, 8 and 10 layers; each run has noise of 0.5 points. Guided maps also see the
divergence of every feasible split before any training; those are drawn with half the usual scatter, which is what real
DeiT-Tiny has, with twice the usual one, and such that they say nothing. No training; about six minutes on one core.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.boundary.synthetic_surfaces import (
    BUDGETS,
    FAMILIES,
    LAYERS,
    SCATTER,
    Trial,
    exchanged,
    make_trials,
    shuffled,
)
from benchmarks.data.real import parser, write
from prunerecover import MapPoint, fit_map
from prunerecover.boundary.designs import Split, axes_and_staircase, interleaved, one_type_at_a_time, spread
from prunerecover.boundary.next_split import next_split
from prunerecover.cost.statistics import Interval, mean_interval, paired_difference
from prunerecover.display.markdown import table

NOISE, TRIALS, SEED = 0.5, 400, 20260  # points per run; surfaces per family


@dataclass(frozen=True)
class Outcome:
    """What a method picked, and after how many runs."""

    split: Split
    runs: int
    regret: Interval | None = None
    refused: bool = False


def from_map(points: list[MapPoint], trial: Trial, surface: str | None, guided: bool = False) -> Outcome:
    """Fit and pick; a map that is refused for predicting above dense picks all the same, and is counted."""
    fitted = fit_map(points, LAYERS, surface=surface, divergences=trial.divergences if guided else None)
    runs = sum(point.split != (0, 0) for point in points)
    try:
        pick, refused = fitted.best(splits=trial.splits), False
    except ValueError:
        pick, refused = replace(fitted, dense=None).best(splits=trial.splits), True
    return Outcome(pick.split, runs, pick.regret, refused)


def fixed(design: Callable[[Trial], tuple[Split, ...]], surface: str | None) -> Callable[[Trial], Outcome]:
    return lambda trial: from_map(trial.run_all(design(trial)), trial, surface)


def refined(runs: int, surface: str | None = None, guided: bool = False) -> Callable[[Trial], Outcome]:
    """Three spread runs, then each further one by `next_split`."""

    def play(trial: Trial) -> Outcome:
        points: list[MapPoint] = []
        while len(points) < runs:
            known = trial.divergences if guided else None
            points.append(trial.run(next_split(points, trial.splits, LAYERS, divergences=known), points))
        return from_map(points, trial, surface, guided)

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
    "3 spread + 2 chosen, Gaussian process": refined(5),
    "3 spread + 2 chosen, parabola": refined(5, "parabola"),
    "3 spread + 3 chosen, Gaussian process": refined(6),
    "3 spread, guided": refined(3, guided=True),
    "3 spread + 1 chosen, guided": refined(4, guided=True),
    "3 spread + 2 chosen, guided (default)": refined(5, guided=True),
}
DEFAULT = "3 spread + 2 chosen, guided (default)"
UNGUIDED = {
    "3 spread + 1 chosen, guided": "3 spread + 1 chosen, Gaussian process",
    DEFAULT: "3 spread + 2 chosen, Gaussian process",
}


def played(method: str, trials: list[Trial]) -> tuple[list[Outcome], NDArray[np.float64], list[bool]]:
    """Return what a method picks, the regrets in points, and whether picks are within a layer of the best split."""
    outcomes = [METHODS[method](trial) for trial in trials]
    truths = [np.array([trial.truth[split] for split in trial.splits]) for trial in trials]
    picks = [trial.splits.index(outcome.split) for trial, outcome in zip(trials, outcomes, strict=True)]
    regrets = np.array([truth.max() - truth[pick] for truth, pick in zip(truths, picks, strict=True)])
    near = [abs(int(truth.argmax()) - pick) <= 1 for truth, pick in zip(truths, picks, strict=True)]
    return outcomes, regrets, near


def guidance() -> list[dict[str, Any]]:
    """Compare guided maps with the same ones that see no divergences, on the same surfaces and runs.

    Surfaces and runs are the same for all divergences.
    """
    trials = make_trials(TRIALS, NOISE, SEED + 4)
    scatters = {f"{share:.0%} of the loss off": share for share in (SCATTER / 2, SCATTER, 2 * SCATTER)}
    kinds = {
        **{name: make_trials(TRIALS, NOISE, SEED + 4, share) for name, share in scatters.items()},
        "shuffled among the splits": shuffled(trials, SEED),
        "those of another surface": exchanged(trials, SEED),
    }
    alone = {method: played(UNGUIDED[method], trials)[1] for method in UNGUIDED}
    return [
        {"divergences": kind, "method": method, **compared(played(method, made)[1], alone[method])}
        for kind, made in kinds.items()
        for method in UNGUIDED
    ]


def compared(guided: NDArray[np.float64], alone: NDArray[np.float64]) -> dict[str, float]:
    """Return the mean regret of guided maps, and how much that of the others lies above it."""
    regret, gain = mean_interval(guided), paired_difference(guided, alone)
    return {
        "regret": regret.value,
        "ci_low": regret.low,
        "ci_high": regret.high,
        "unguided": float(alone.mean()),
        "gain": gain.value,
        "gain_low": gain.low,
        "gain_high": gain.high,
    }


def summarize(method: str, trials: list[Trial]) -> dict[str, Any]:
    """Play all trials with one method."""
    outcomes, regrets, near = played(method, trials)
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
    guided = guidance()
    settings = {"trials_per_family": TRIALS, "noise": NOISE, "budgets": BUDGETS, "seed": SEED, "scatter": SCATTER}
    write(
        "map_synthetic",
        {**settings, "rows": rows, "other_noise": others, "guided": guided},
        markdown(rows, others, guided),
    )


def markdown(rows: list[dict[str, Any]], others: list[dict[str, Any]], guided: list[dict[str, Any]]) -> str:
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
        "",
        f"Guided maps also see the divergence of every split before any training, {SCATTER:.0%} of the loss off; that "
        "of [real DeiT-Tiny](boundary_divergences.md) is half as far off. On fresh surfaces, with other scatters, and "
        "with divergences that say nothing; gain: regret of the same map without divergences, less that with them "
        "(paired 95% interval):",
        "",
        table(
            ("divergences", "runs and surface", "regret (95% interval)", "without divergences", "gain"),
            (
                (
                    row["divergences"],
                    row["method"],
                    f"{row['regret']:.3f} ({row['ci_low']:.3f}-{row['ci_high']:.3f})",
                    f"{row['unguided']:.3f}",
                    f"{row['gain']:+.3f} ({row['gain_low']:+.3f} to {row['gain_high']:+.3f})",
                )
                for row in guided
            ),
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
