"""Regret of accuracy maps on synthetic surfaces with known best splits.

    python -m benchmarks.boundary.map_synthetic

See `synthetic_surfaces` for the surfaces and the divergences. The methods were tuned on other seeds than the reported
ones. Budgets are 6, 8 and 10 layers; each run has noise of 0.5 points. Guided maps also see the divergence of every
feasible split before training, drawn with half the usual scatter, with twice the usual scatter, and without any
information. No training; about six minutes on one core.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.boundary.synthetic_surfaces import FAMILIES, LAYERS, SCATTER, Trial, exchanged, make_trials, shuffled
from benchmarks.runner.benchmark import Benchmark
from benchmarks.runner.page import Table, figure, signed, text
from benchmarks.runner.rows import Figure
from prunerecover import MapPoint, fit_map
from prunerecover.boundary.designs import Split, axes_and_staircase, one_type_at_a_time, spread
from prunerecover.boundary.next_split import next_split
from prunerecover.cost.statistics import Interval, mean_interval, paired_difference

NOISE, TRIALS, SEED = 0.5, 400, 20260  # points per run; surfaces per family


@dataclass(frozen=True)
class Outcome:
    """Pick of a method, and the number of runs."""

    split: Split
    runs: int
    regret: Interval | None = None
    refused: bool = False


def from_map(points: list[MapPoint], trial: Trial, surface: str | None, guided: bool = False) -> Outcome:
    """Fit and pick; a map refused for predictions above dense still picks, and is counted as refused."""
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
    """Return a method of three spread runs, then runs by `next_split`."""

    def play(trial: Trial) -> Outcome:
        points: list[MapPoint] = []
        while len(points) < runs:
            known = trial.divergences if guided else None
            points.append(trial.run(next_split(points, trial.splits, LAYERS, divergences=known), points))
        return from_map(points, trial, surface, guided)

    return play


def in_turn(trial: Trial) -> tuple[Split, ...]:
    """Return the runs of Algorithm 2 (arXiv 2607.03784): attentions and activations in turn, cumulative."""
    return tuple(((n + 1) // 2, n // 2) for n in range(sum(trial.splits[0]) + 1))


def best_measured(runs: int) -> Callable[[Trial], Outcome]:
    """Return a method of spread runs without a surface: the best measured split wins."""

    def play(trial: Trial) -> Outcome:
        points = trial.run_all(spread(trial.splits, runs))
        return Outcome(max(points, key=lambda point: point.accuracy).split, len(points))

    return play


METHODS: dict[str, Callable[[Trial], Outcome]] = {
    "paper's 22, polynomial": fixed(lambda _: axes_and_staircase(LAYERS), "polynomial"),
    "paper's 22, Gaussian process": fixed(lambda _: axes_and_staircase(LAYERS), "gaussian_process"),
    "Algorithm 1, polynomial": fixed(lambda t: one_type_at_a_time(LAYERS, sum(t.splits[0])), "polynomial"),
    "Algorithm 2, polynomial": fixed(in_turn, "polynomial"),
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


SHUFFLED, FOREIGN = "shuffled among the splits", "those of another surface"
SCATTERS = {f"{share:.0%} of the loss off": share for share in (SCATTER / 2, SCATTER, 2 * SCATTER)}
KINDS = (*SCATTERS, SHUFFLED, FOREIGN)


def played(method: str, trials: list[Trial]) -> tuple[list[Outcome], NDArray[np.float64], list[bool]]:
    """Return a method's picks, the regrets in points, and whether picks are within a layer of the best split."""
    outcomes = [METHODS[method](trial) for trial in trials]
    truths = [np.array([trial.truth[split] for split in trial.splits]) for trial in trials]
    picks = [trial.splits.index(outcome.split) for trial, outcome in zip(trials, outcomes, strict=True)]
    regrets = np.array([truth.max() - truth[pick] for truth, pick in zip(truths, picks, strict=True)])
    near = [abs(int(truth.argmax()) - pick) <= 1 for truth, pick in zip(truths, picks, strict=True)]
    return outcomes, regrets, near


@cache
def trials_of(noise: float, divergences: str) -> list[Trial]:
    """Return the surfaces of a comparison; the same for all divergences without information."""
    if not divergences:
        return make_trials(TRIALS, noise, SEED if noise == NOISE else SEED + 2)
    if divergences in SCATTERS:
        return make_trials(TRIALS, noise, SEED + 4, SCATTERS[divergences])
    return (shuffled if divergences == SHUFFLED else exchanged)(make_trials(TRIALS, noise, SEED + 4), SEED)


def measure(noise: float, divergences: str, method: str) -> dict[str, Any]:
    """Play all trials with a method; with divergences, also without them on the same surfaces and runs."""
    trials = trials_of(noise, divergences)
    outcomes, regrets, near = played(method, trials)
    found: dict[str, Any] = {"regret": Figure.within(mean_interval(regrets), len(regrets))}
    if divergences:
        alone = played(UNGUIDED[method], make_trials(TRIALS, noise, SEED + 4))[1]
        gain = Figure.within(paired_difference(regrets, alone), len(alone))
        return {**found, "unguided": Figure(float(alone.mean())), "gain": gain}
    families = np.array([trial.family for trial in trials])
    known = [(o.regret, r) for o, r in zip(outcomes, regrets, strict=True) if o.regret is not None]
    return {
        **found,
        "runs": float(np.mean([outcome.runs for outcome in outcomes])),
        "within_one_layer": float(np.mean(near)),
        **{name: float(regrets[families == name].mean()) for name in FAMILIES},
        "expected_regret": float(np.mean([interval.value for interval, _ in known])) if known else None,
        "covered": float(np.mean([r <= interval.high for interval, r in known])) if known else None,
        "refused": float(np.mean([outcome.refused for outcome in outcomes])),
    }


COLUMNS = [
    text("method", "runs and surface"),
    text("runs", "", "{:.1f}"),
    figure("regret", "regret (95% interval)", 3),
    text("within_one_layer", "within one layer", "{:.1%}"),
    *(text(name, "", "{:.3f}") for name in FAMILIES),
    text("expected_regret", "expected", "{:.3f}"),
    text("covered", "", "{:.1%}"),
    text("refused", "", "{:.1%}"),
]
GUIDED = [
    text("divergences"),
    *(COLUMNS[0], COLUMNS[2]),
    figure("unguided", "without divergences", 3),
    signed("gain", "gain", 3),
]
OTHERS = ("paper's 22, polynomial", "5 spread, parabola", DEFAULT)
BENCHMARK = Benchmark(
    title="Regret of accuracy maps on synthetic surfaces",
    text=f"""{TRIALS * len(FAMILIES)} trials at the scale of DeiT-B, budgets of 6, 8 and 10 layers of 24; runs have
    noise of {NOISE} points, as the maps assume, or, in the second table, another. Regret: true accuracy of the best
    feasible split less that of the picked one, in points; also by family of surfaces. Runs leave out the dense model.
    Expected: the mean regret that the map announces; covered: how often its 95% interval reaches the true regret;
    refused: how often the map was refused for predicting above dense (it was scored all the same). Guided maps also see
    the divergence of every split before any training, {SCATTER:.0%} of the loss off. The last table is of fresh
    surfaces, with other scatters, and with divergences that say nothing; gain: regret of the same map without
    divergences, less that with them (paired 95% interval).""",
    measure=measure,
    references=[
        *({"noise": NOISE, "divergences": "", "method": method} for method in METHODS),
        *({"noise": noise, "divergences": "", "method": method} for noise in (0.25, 1.0) for method in OTHERS),
        *({"noise": NOISE, "divergences": kind, "method": method} for kind in KINDS for method in UNGUIDED),
    ],
    tables=(
        Table(COLUMNS, where=lambda row: row["noise"] == NOISE and not row["divergences"]),
        Table([text("noise"), *COLUMNS], line=("noise", "method"), where=lambda row: row["noise"] != NOISE),
        Table(GUIDED, line=("divergences", "method"), where=lambda row: bool(row["divergences"])),
    ),
)

if __name__ == "__main__":
    BENCHMARK.main()
