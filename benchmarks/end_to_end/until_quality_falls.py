"""Pruning until the validation accuracy falls, against single budgets tried by hand.

    python -m benchmarks.end_to_end.until_quality_falls

The network is a small digits ViT. In steps: one fit of `WidthPrune(Quality("val_top1", drop=DROP), step=STEP)`. By
hand: a fit for each budget, pruned at once, with as many epochs as a step and the end of that fit, and with as many as
the whole of it; the largest budget with the same validation accuracy is what a user would have found. About two minutes
a seed on a core.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import lightning.pytorch as pl
import torch

from benchmarks.runner.benchmark import Axis, Benchmark
from benchmarks.runner.fits import QUIET, fit
from benchmarks.runner.page import Table, across, figure, text
from benchmarks.runner.rows import Figure, Row
from prunerecover import Budget, Quality, RecoverySchedule, WidthPrune
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.cost.macs import count_macs
from prunerecover.display.markdown import table
from prunerecover.model.batches import ModelInputs
from prunerecover.recipes.data.digits import DigitsData
from prunerecover.recipes.tasks.digits_classifier import DigitsClassifier

MONITOR, DROP, STEP = "val_top1", 0.01, 0.1
SHAPE, BATCH = {"depth": 4, "embed_dim": 32, "num_heads": 4}, 64
TRAINED, EVERY, MOST, AFTER = 40, 2, 8, 3  # epochs: before, of a step; steps at most; epochs that are left for the end
SHORT, LONG = EVERY + AFTER, EVERY * MOST + AFTER
BUDGETS = tuple(round(STEP * number, 1) for number in range(1, 9))
STEPS, HAND = "in steps", "by hand"


@lru_cache(maxsize=1)
def dense(seed: int) -> tuple[DigitsClassifier, DigitsData]:
    """Return the network after its training, and the data."""
    pl.seed_everything(seed, verbose=False)
    data, module = DigitsData(batch_size=BATCH), DigitsClassifier(**SHAPE)
    fit(module, data, max_epochs=TRAINED)
    return module, data


def scores(module: pl.LightningModule, data: DigitsData) -> dict[str, Figure]:
    """Return the accuracy on the validation and on the test images."""
    trainer = pl.Trainer(accelerator="cpu", **QUIET)
    (val,) = trainer.validate(module, datamodule=data, verbose=False)
    (test,) = trainer.test(module, datamodule=data, verbose=False)
    return {"val": Figure(val[MONITOR], n=149), "test": Figure(test["test_top1"], n=809)}


def macs_left(module: pl.LightningModule, before: int) -> float:
    """Return the remaining share of the MACs; 1 of a dense network."""
    plan = Ledger.of(module).plans.get("model")
    return plan.result.macs / before if plan is not None and plan.edits else 1.0


def measure(seed: int, epochs: int, budget: float, method: str) -> dict[str, Any]:
    """Return the row of a fit in steps, or of a budget at once."""
    module, data = copy.deepcopy(dense(seed)[0]), dense(seed)[1]
    if method == "dense":
        return scores(module, data)
    before = count_macs(module.model, ModelInputs((torch.zeros(1, 1, 8, 8),)))
    goal: Any = Quality(MONITOR, drop=DROP) if method == STEPS else Budget(macs=budget)
    how: dict[str, Any] = {"step": STEP, "schedule": {"every": EVERY}} if method == STEPS else {}
    prune = WidthPrune(goal, calibration=64, merge="never", seed=seed, **how)
    pl.seed_everything(seed, verbose=False)
    started = time.perf_counter()
    fit(module, data, [prune, RecoverySchedule()], max_epochs=epochs)
    trail = [one.model_dump(mode="json") for one in Ledger.of(module).quality.values()]
    found = {"seconds": time.perf_counter() - started, "macs_left": macs_left(module, before), **scores(module, data)}
    return found | ({"trail": trail[0]} if trail else {})


def ends(rows: Sequence[Row]) -> str:
    """Render where each way ends from each seed's dense network, and the steps of the fits in steps."""
    lines, steps = [], []
    for row in (row for row in rows if row.method == STEPS):
        own = [other for other in rows if other["seed"] == row["seed"]]
        (base,) = (other for other in own if other.method == "dense")
        lines += [shown("dense", base, "", ""), shown(STEPS, row, LONG, f"{row['seconds']:.0f}")]
        for epochs in (SHORT, LONG):
            tried = sorted((r for r in own if r.is_of(method=HAND, epochs=epochs)), key=lambda r: float(r.budget))
            worst = Quality(MONITOR, drop=DROP)
            kept = [r for r in tried if worst.holds(r.figures["val"].value, base.figures["val"].value)]
            if kept:
                seconds = f"{sum(r['seconds'] for r in tried):.0f}"
                lines.append(shown(f"{HAND}, {epochs} epochs each", kept[-1], epochs * len(tried), seconds))
        trail = row["trail"]
        ended = f"It ended because {trail['ended']}; dense {trail['dense']:.1%}, asked for {trail['worst']:.1%}."
        steps += [f"## Steps of seed {row['seed']}", table(STEP_HEAD, map(_step, trail["steps"])), ended]
    head = ("seed", "way", "MACs left", "validation", "test", "epochs", "seconds")
    return "\n\n".join([table(head, lines), *steps])


def shown(way: str, row: Row, epochs: object, seconds: str) -> tuple[object, ...]:
    """Return the cells of where a way ends."""
    accuracies = (f"{row.figures[name].value:.1%}" for name in ("val", "test"))
    return (row["seed"], way, f"{row.get('macs_left', 1.0):.1%}", *accuracies, epochs, seconds)


STEP_HEAD = ("step at epoch", "MACs asked for", "MACs left", "right after surgery", "recovered", "")


def _step(step: dict[str, Any]) -> tuple[object, ...]:
    shares = (f"{step['left']['macs']:.1%}", f"{step['after_surgery']:.1%}", f"{step['recovered']:.1%}")
    return (step["epoch"], f"{step['asked']['macs']:.0%}", *shares, "kept" if step["kept"] else "taken back")


BENCHMARK = Benchmark(
    title="Until the metric falls",
    text=f"""A digits ViT of 4 blocks and 32 channels after {TRAINED} epochs, 149 validation images, 809 test images,
    `WidthPrune` with `RecoverySchedule`. In steps: one fit of `Quality("{MONITOR}", drop={DROP}), step={STEP}`, {EVERY}
    epochs of recovery a step, {LONG} epochs in all. By hand: one fit for each budget of the MACs, which goes at once,
    with {SHORT} epochs, as many as a step and the end of that fit have, or with {LONG}; the largest whose validation
    accuracy is within the same drop. Epochs and seconds by hand are those of all budgets that were tried. One
    validation image is 0.7 points.""",
    measure=measure,
    axes={
        "seed": Axis((0, 1, 2), open=True),
        "epochs": Axis((SHORT, LONG), "--epochs"),
        "budget": Axis(BUDGETS),
        "method": Axis((HAND,)),
    },
    references=[
        {"seed": seed, "epochs": LONG, "budget": 0.0, "method": method}
        for seed in (0, 1, 2)
        for method in ("dense", STEPS)
    ],
    tables=(
        Table((), "Where each way ends", text=ends),
        Table(
            [
                text("budget", "budget at once", "{:.0%}"),
                *across(
                    "epochs",
                    (SHORT, LONG),
                    [
                        figure("val", "validation, {} epochs", 1, 100, "%", ends=False),
                        figure("test", "test, {} epochs", 1, 100, "%", ends=False),
                    ],
                ),
            ],
            title="Budgets by hand, seed {seed}",
            by=("seed",),
            line=("budget",),
            where=lambda row: row.method == HAND,
        ),
    ),
)

if __name__ == "__main__":
    BENCHMARK.main()
