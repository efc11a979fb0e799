"""`prunerecover quickstart`: the whole flow on a real task without a download.

Trains a small vision transformer on scikit-learn's digits, removes activations and attentions with `DepthPrune`,
recovers with `DistillRecover` inside an ordinary Trainer, merges, and compares with the dense model on unseen test
digits. The numbers of `RECIPE` were chosen on the validation digits.
"""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import lightning.pytorch as pl
import torch
from rich.console import Console
from rich.progress import Progress
from torch import nn

from prunerecover import Plan, Report, apply_plan, compare, find_units, merge, save_pruned
from prunerecover.callbacks import DepthPrune, DistillRecover
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.callbacks.prune_report import planning_cost
from prunerecover.callbacks.trials.nested import nested_trainer, quiet
from prunerecover.plan.evidence import PlanningCost
from prunerecover.recipes.data.digits import DigitsData
from prunerecover.recipes.tasks.digits_classifier import DigitsClassifier
from prunerecover.report.curves import plot_history
from prunerecover.report.scoring import metric_named, score

Curve = list[tuple[float, float]]


@dataclass(frozen=True)
class Recipe:
    """Settings of the quickstart's training, pruning and recovery.

    Args:
        epochs: Epochs of the dense training.
        learning_rate: Learning rate of the dense training.
        recovery_epochs: Epochs after the surgery.
        recovery_rate: Learning rate after the surgery.
        remove: Number of units to remove per kind.
    """

    epochs: int = 25
    learning_rate: float = 1e-3
    recovery_epochs: int = 15
    recovery_rate: float = 2e-3
    remove: dict[str, int] = field(default_factory=lambda: {"activation": 3, "attention": 2})


RECIPE = Recipe()
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Run:
    """Models, plan and accuracies on the test digits for a seed."""

    dense: nn.Module
    pruned: nn.Module
    plan: Plan
    planning_cost: PlanningCost | None
    curves: dict[str, Curve]
    accuracies: dict[str, float]


class ValidationCurve(pl.Callback):
    """Validation accuracy of every epoch; also moves the progress bar."""

    def __init__(self, progress: Progress, label: str, epochs: int, first_epoch: int = 0) -> None:
        self.points: Curve = []
        self.first_epoch, self.progress = first_epoch, progress
        self.task = progress.add_task(label, total=epochs)

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Keep the accuracy after each epoch, epochs counted from 1."""
        epoch = self.first_epoch + trainer.current_epoch + 1
        self.points.append((epoch, float(trainer.callback_metrics["val_top1"])))
        self.progress.advance(self.task)


def run_quickstart(seeds: int = 3, output: str = "report", recipe: Recipe = RECIPE) -> Report:
    """Run the quickstart, print the tables and write the report; returns the first seed's report.

    Args:
        seeds: Number of runs to average; the report shows the first.
        output: Folder to write.
        recipe: Settings of training, pruning and recovery.

    Raises:
        ValueError: If `seeds` is below 1.
    """
    if seeds < 1:
        raise ValueError(f"Expected at least 1 seed, but got {seeds}. Use --seeds 1 for the quickest run.")
    started, console = time.perf_counter(), Console()
    data = DigitsData()
    data.setup()
    with _quiet(), Progress(console=console) as progress:
        runs = [run_once(seed, data, recipe, progress) for seed in range(seeds)]
        report = report_on(runs, data, recipe, time.perf_counter() - started)
    folder = write(report, runs[0], Path(output))
    console.print(report.table())
    for line in summary(report):
        console.print(line, highlight=False)
    console.print(f"Wrote {folder}/: report.md, report.json, figures, plan.json and pruned/ (open with load_pruned).")
    return report


def run_once(seed: int, data: DigitsData, recipe: Recipe, progress: Progress) -> Run:
    """Train, prune, recover and merge with a seed.

    Args:
        seed: Seed of all random draws.
        data: DataModule after `setup`.
        recipe: Settings of training, pruning and recovery.
        progress: Progress display for the dense training and the recovery.
    """
    pl.seed_everything(seed, verbose=False)
    module = DigitsClassifier(learning_rate=recipe.learning_rate)
    curve = ValidationCurve(progress, f"seed {seed}: train the dense model", recipe.epochs)
    nested_trainer(CPU, [curve], max_epochs=recipe.epochs).fit(module, data)
    dense = copy.deepcopy(module.model).eval()

    module.learning_rate, module.warmup_epochs = recipe.recovery_rate, 1.0
    prune = DepthPrune(remove=recipe.remove, merge="never", seed=seed)
    after = ValidationCurve(progress, f"seed {seed}: prune and recover", recipe.recovery_epochs, recipe.epochs)
    callbacks = [prune, DistillRecover(), after]
    nested_trainer(CPU, callbacks, max_epochs=recipe.recovery_epochs).fit(module, data)

    ledger = Ledger.of(module)
    plan = ledger.plans["model"]
    cost = planning_cost(plan, ledger.events, "model")
    unrecovered = copy.deepcopy(dense)
    apply_plan(unrecovered, plan)
    pruned = copy.deepcopy(module.model).eval()
    plan = plan + merge(pruned)
    models = {"dense": dense, "pruned": unrecovered, "recovered": pruned}
    accuracies = _accuracies(models, data.test_dataloader())
    at_surgery = _accuracies({"pruned": unrecovered}, data.val_dataloader())["pruned"]
    curves = {"dense": curve.points, "pruned and recovered": [(recipe.epochs, at_surgery), *after.points]}
    return Run(dense, pruned, plan, cost, curves, accuracies)


def _accuracies(models: Mapping[str, nn.Module], batches: Iterable[Any]) -> dict[str, float]:
    scores = score(list(models.values()), batches, {"top1": metric_named("top1")})
    return {name: float(found["top1"].mean()) for name, found in zip(models, scores, strict=True)}


def report_on(runs: list[Run], data: DigitsData, recipe: Recipe, seconds: float) -> Report:
    """Compare the first run's models, with all runs' accuracies beside them.

    Args:
        runs: Runs, at least one.
        data: DataModule with the test digits.
        recipe: Settings of the runs.
        seconds: Time of all runs.
    """
    images = data.datasets["test"].images[:64]
    details = {
        "seeds": [run.accuracies for run in runs],
        "mean": {name: fmean(run.accuracies[name] for run in runs) for name in runs[0].accuracies},
        "seconds": round(seconds, 1),
        "recipe": {**vars(recipe), "data": "scikit-learn digits", "test_digits": len(data.datasets["test"])},
    }
    first = runs[0]
    batches = data.test_dataloader()
    plan, cost = first.plan, first.planning_cost
    return compare(first.dense, first.pruned, images, batches=batches, plan=plan, planning_cost=cost, details=details)


def summary(report: Report) -> list[str]:
    """Return the lines below the table: all seeds' accuracies."""
    seeds, mean = report.details["seeds"], report.details["mean"]
    digits = report.details["recipe"]["test_digits"]
    lines = [f"Accuracy on {digits} test digits: dense, pruned before recovery, recovered"]
    lines += [f"  seed {i}: {_percents(found)}" for i, found in enumerate(seeds)]
    change = 100 * (mean["recovered"] - mean["dense"])
    lines.append(f"  mean:   {_percents(mean)}   ({change:+.2f} points against dense)")
    return lines


def _percents(accuracies: dict[str, float]) -> str:
    return "  ".join(f"{100 * accuracies[name]:6.2f}%" for name in ("dense", "pruned", "recovered"))


def write(report: Report, run: Run, folder: Path) -> Path:
    """Write the report, its figures, the plan and the pruned model; returns the folder.

    Args:
        report: Report of all runs.
        run: Run with the curves, plan and pruned model to write.
        folder: Folder to write; made if missing.
    """
    surgery = float(run.curves["dense"][-1][0])
    label = ", ".join(f"-{len(units)} {kind}" for kind, units in run.plan.removed.items())
    figures = {
        "removed": run.plan.plot(units=find_units(run.dense, kinds=tuple(run.plan.removed))),
        "accuracy": plot_history(run.curves, [(surgery, label)], metric="Validation accuracy"),
    }
    report.save(folder, figures)
    run.plan.save(folder / "plan.json")
    save_pruned(run.pruned, run.plan, folder / "pruned")
    return folder


@contextmanager
def _quiet() -> Iterator[None]:
    """Use a single thread (the fastest for small models) and silence Lightning's hints about hardware and workers."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with quiet(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="lightning")
            yield
    finally:
        torch.set_num_threads(threads)
