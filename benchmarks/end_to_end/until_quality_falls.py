"""Pruning until the validation accuracy falls, beside single budgets that were tried by hand.

    python -m benchmarks.end_to_end.until_quality_falls

A small digits ViT. In steps: one fit of `WidthPrune(Quality("val_top1", drop=DROP), step=STEP)`. By hand: one fit for
each budget, pruned at once, with as many epochs as one step and the end of that fit have, and with as many as the whole
of it; the largest that keeps the same validation accuracy is the one that somebody would have found. Resumable: rows
that are there are not made again. About two minutes of a core a seed.
"""

from __future__ import annotations

import copy
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import lightning.pytorch as pl
import torch

from benchmarks.data.real import RESULTS, made_by, parser, write
from benchmarks.depth.graph_depth_rows import add, rows_so_far
from prunerecover import Budget, Quality, RecoverySchedule, WidthPrune
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.display.markdown import table
from prunerecover.recipes.data.digits import DigitsData
from prunerecover.recipes.tasks.digits_classifier import DigitsClassifier

NAME, MONITOR, DROP, STEP = "until_quality_falls", "val_top1", 0.01, 0.1
ROWS = RESULTS / f"{NAME}.rows.jsonl"
SHAPE, BATCH = {"depth": 4, "embed_dim": 32, "num_heads": 4}, 64
TRAINED, EVERY, MOST, AFTER = 40, 2, 8, 3  # epochs: before, of a step; steps at most; epochs that are left for the end
SHORT, LONG = EVERY + AFTER, EVERY * MOST + AFTER
BUDGETS = tuple(round(STEP * number, 1) for number in range(1, 9))
CALIBRATION = 64
QUIET = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}
Row = dict[str, Any]


def fitted(module: pl.LightningModule, data: DigitsData, epochs: int, callbacks: Sequence[pl.Callback]) -> pl.Trainer:
    """Fit a module, and return the Trainer, which keeps no files."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = pl.Trainer(
            max_epochs=epochs,
            callbacks=list(callbacks),
            default_root_dir=folder,
            enable_checkpointing=False,
            **QUIET,  # type: ignore[arg-type]
        )
        trainer.fit(module, datamodule=data)
    return trainer


def dense(seed: int) -> tuple[DigitsClassifier, DigitsData]:
    """Return the network after its training, and the data."""
    pl.seed_everything(seed, verbose=False)
    data, module = DigitsData(batch_size=BATCH), DigitsClassifier(**SHAPE)
    fitted(module, data, TRAINED, ())
    return module, data


def scores(module: pl.LightningModule, data: DigitsData) -> dict[str, float]:
    """Return the accuracy on the validation and on the test images."""
    trainer = pl.Trainer(enable_checkpointing=False, **QUIET)  # type: ignore[arg-type]
    (val,) = trainer.validate(module, datamodule=data, verbose=False)
    (test,) = trainer.test(module, datamodule=data, verbose=False)
    return {"val": val[MONITOR], "test": test["test_top1"]}


def macs_left(module: pl.LightningModule, before: int) -> float:
    """Return the share of the MACs that is left; 1 of a dense network."""
    plan = Ledger.of(module).plans.get("model")
    return plan.result.macs / before if plan is not None and plan.edits else 1.0


def in_steps(network: tuple[DigitsClassifier, DigitsData], before: int, seed: int) -> Row:
    """Return the row of a fit that ends where the metric falls."""
    module, data = copy.deepcopy(network[0]), network[1]
    prune = WidthPrune(
        Quality(MONITOR, drop=DROP),
        step=STEP,
        schedule={"every": EVERY},
        calibration=CALIBRATION,
        merge="never",
        seed=seed,
    )
    pl.seed_everything(seed, verbose=False)
    started = time.perf_counter()
    fitted(module, data, LONG, [prune, RecoverySchedule()])
    (trail,) = Ledger.of(module).quality.values()
    found = {"seconds": time.perf_counter() - started, "macs_left": macs_left(module, before), **scores(module, data)}
    return {"how": "steps", "seed": seed, **found, "trail": trail.model_dump(mode="json")}


def by_hand(network: tuple[DigitsClassifier, DigitsData], before: int, share: float, epochs: int, seed: int) -> Row:
    """Return the row of one budget that goes at once."""
    module, data = copy.deepcopy(network[0]), network[1]
    prune = WidthPrune(Budget(macs=share), calibration=CALIBRATION, merge="never", seed=seed)
    pl.seed_everything(seed, verbose=False)
    started = time.perf_counter()
    fitted(module, data, epochs, [prune, RecoverySchedule()])
    found = {"seconds": time.perf_counter() - started, "macs_left": macs_left(module, before), **scores(module, data)}
    return {"how": "hand", "seed": seed, "budget": share, "epochs": epochs, **found}


def run(seed: int) -> None:
    """Add the rows of a seed that are missing."""
    from prunerecover.cost.macs import count_macs
    from prunerecover.model.batches import ModelInputs

    missing = [
        (share, epochs)
        for epochs in (SHORT, LONG)
        for share in BUDGETS
        if not rows_so_far(ROWS, how="hand", seed=seed, budget=share, epochs=epochs)
    ]
    if rows_so_far(ROWS, how="steps", seed=seed) and not missing:
        return
    network = dense(seed)
    before = count_macs(network[0].model, ModelInputs((torch.zeros(1, 1, 8, 8),)))
    if not rows_so_far(ROWS, how="dense", seed=seed):
        add({"how": "dense", "seed": seed, **scores(*network)}, ROWS)
    if not rows_so_far(ROWS, how="steps", seed=seed):
        print(add(in_steps(network, before, seed), ROWS), flush=True)
    for share, epochs in missing:
        print(add(by_hand(network, before, share, epochs, seed), ROWS), flush=True)


def main() -> None:
    """Add rows that are missing, and write the page."""
    options = parser(__doc__)
    options.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    asked = options.parse_args()
    torch.set_num_threads(1)
    for seed in asked.seeds:
        run(seed)
    page()


def page() -> None:
    """Write the page of the rows that are there."""
    rows = rows_so_far(ROWS)
    steps = [row for row in rows if row["how"] == "steps"]
    lines = ["# Until the metric falls", "", *made_by(sorted({row["command"] for row in rows})), TEXT]
    lines += ["", "## Where each way ends", "", table(ENDS, [line for row in steps for line in _ends(row, rows)])]
    for row in steps:
        lines += ["", f"## Steps of seed {row['seed']}", "", table(STEPS, _steps(row)), "", _ended(row)]
        tried = [[r for r in _tried(row["seed"], rows) if r["epochs"] == epochs] for epochs in (SHORT, LONG)]
        lines += ["", table(TRIED, [_pair(*pair) for pair in zip(*tried, strict=False)])]
    write(NAME, {"rows": rows}, "\n".join(lines))


ENDS = ("seed", "way", "MACs left", "validation", "test", "epochs", "seconds")
STEPS = ("step at epoch", "MACs asked for", "MACs left", "right after surgery", "recovered", "")
TRIED = ("budget at once", f"validation, test: {SHORT} epochs", f"validation, test: {LONG} epochs")
TEXT = (
    f"A digits ViT of 4 blocks and 32 channels after {TRAINED} epochs, 149 validation images, 809 test images, "
    "`WidthPrune` with `RecoverySchedule`. "
    f'In steps: one fit of `Quality("{MONITOR}", drop={DROP}), step={STEP}`, {EVERY} epochs of recovery a step, '
    f"{LONG} epochs in all. By hand: one fit for each budget of the MACs, which goes at once, with {SHORT} epochs, as "
    f"many as a step and the end of that fit have, or with {LONG}; the largest whose validation accuracy is within "
    "the same drop. Epochs and seconds by hand are those of all budgets that were tried. One validation image is 0.7 "
    "points."
)


def _tried(seed: int, rows: Sequence[Row]) -> list[Row]:
    """Return the rows of single budgets, in their order."""
    found = [row for row in rows if row["how"] == "hand" and row["seed"] == seed]
    return sorted(found, key=lambda row: float(row["budget"]))


def _ends(row: Row, rows: Sequence[Row]) -> list[tuple[object, ...]]:
    """Return where each way ends from one seed's dense network."""
    (base,) = (r for r in rows if r["how"] == "dense" and r["seed"] == row["seed"])
    lines = [("dense", base | {"macs_left": 1.0}, "", ""), ("in steps", row, LONG, f"{row['seconds']:.0f}")]
    for epochs in (SHORT, LONG):
        tried = [r for r in _tried(row["seed"], rows) if r["epochs"] == epochs]
        kept = [r for r in tried if Quality(MONITOR, drop=DROP).holds(r["val"], base["val"])]
        if kept:
            seconds = f"{sum(r['seconds'] for r in tried):.0f}"
            lines.append((f"by hand, {epochs} epochs each", kept[-1], epochs * len(tried), seconds))
    shares = ("macs_left", "val", "test")
    return [(row["seed"], way, *(f"{r[name]:.1%}" for name in shares), *cost) for way, r, *cost in lines]


def _steps(row: Row) -> list[tuple[object, ...]]:
    return [
        (
            step["epoch"],
            f"{step['asked']['macs']:.0%}",
            f"{step['left']['macs']:.1%}",
            f"{step['after_surgery']:.1%}",
            f"{step['recovered']:.1%}",
            "kept" if step["kept"] else "taken back",
        )
        for step in row["trail"]["steps"]
    ]


def _pair(*rows: Row) -> tuple[object, ...]:
    return (f"{rows[0]['budget']:.0%}", *(f"{row['val']:.1%}, {row['test']:.1%}" for row in rows))


def _ended(row: Row) -> str:
    trail = row["trail"]
    return f"It ended because {trail['ended']}; dense {trail['dense']:.1%}, asked for {trail['worst']:.1%}."


if __name__ == "__main__":
    main()
