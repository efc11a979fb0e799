"""The learning rate after surgery: constant as the user has it, and with RecoverySchedule beside the pruning callback.

    PRUNERECOVER_DATA=... python -m benchmarks.recovery.schedule --choose
    PRUNERECOVER_DATA=... python -m benchmarks.recovery.schedule --seeds 0 1 2

ResNet-20 without half of its MACs in width, reconstructed, trains two epochs of 6,000 JPEGs of CIFAR-10 in a Trainer:
SGD with momentum 0.9, batches of 50, half of them mirrored. `--choose` compares lengths of the warm-up on 2,000 other
training images; the default is what it finds, and the page's other table is of all 10,000 test images. Resumable: rows
that are there are not made again. 2 minutes a fit on a core.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from functools import cache
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.utilities.seed import isolate_rng
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.data.cifar import hits, training_images
from benchmarks.data.real import CHECKPOINTS, RESULTS, kept_plan, made_by, parser, unpacked, write
from benchmarks.depth.graph_depth_rows import add, measured, rows_so_far
from benchmarks.width.cifar_models import load
from prunerecover import Budget, Plan, RecoverySchedule, WidthPrune, plan_width
from prunerecover.cost.statistics import paired_difference
from prunerecover.display.markdown import table
from prunerecover.recovery.schedule import WARMUP

NAME = "recovery_schedule"
ROWS = RESULTS / f"{NAME}.rows.jsonl"
TRAINED, HELD_OUT, CALIBRATION, BATCH, EPOCHS = 6000, 2000, 256, 50, 2
RATES, WARMUPS, CHOSEN_ON = (0.05, 0.02, 0.005), (0.0, 0.25, 0.5), 100
CONSTANT = "constant"
Row = dict[str, Any]


class Classifier(pl.LightningModule):
    """Real ResNet-20, trained at a constant rate."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.net, self.rate = load("ResNet-20").train(), rate

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        """Return the loss, with half of the batches mirrored."""
        images, labels = batch
        return F.cross_entropy(self.net(images.flip(3) if torch.rand(()) < 0.5 else images), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return SGD at a constant rate."""
        return torch.optim.SGD(self.parameters(), self.rate, momentum=0.9, weight_decay=5e-4)


@cache
def plan(seed: int) -> Plan:
    """Return what goes, scored on training images."""
    images, labels = (tensor[:CALIBRATION].split(64) for tensor in training_images(TRAINED + HELD_OUT, seed))
    batches = list(zip(images, labels, strict=True))
    how: dict[str, Any] = {"batches": batches, "seed": seed}
    return kept_plan(
        CHECKPOINTS / NAME / f"{seed}.json", lambda: plan_width(load("ResNet-20"), Budget(macs=0.5), **how)
    )


def recovered(seed: int, rate: float, schedules: Iterable[pl.Callback], epochs: int = EPOCHS) -> nn.Module:
    """Prune and train in one fit, and return the network."""
    images, labels = training_images(TRAINED + HELD_OUT, seed)
    data = DataLoader(TensorDataset(images[:TRAINED], labels[:TRAINED]), BATCH, shuffle=True)
    surgeon = WidthPrune(plan=plan(seed), calibration=CALIBRATION, merge="never", seed=seed)
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    with tempfile.TemporaryDirectory() as folder, isolate_rng():
        pl.seed_everything(seed, verbose=False)
        module = Classifier(rate)
        trainer = pl.Trainer(
            max_epochs=epochs,
            accelerator="cpu",
            callbacks=[surgeon, *schedules],
            enable_checkpointing=False,
            default_root_dir=folder,
            **quiet,
        )
        trainer.fit(module, data)
    return module.net.eval()


def held_out(network: nn.Module, seed: int) -> NDArray[np.float64]:
    """Return whether the network is right, per training image that it was not trained on."""
    images, labels = (tensor[TRAINED:] for tensor in training_images(TRAINED + HELD_OUT, seed))
    with torch.inference_mode():
        predicted = torch.cat([network(batch).argmax(1) for batch in images.split(100)])
    return predicted.eq(labels).double().numpy()


def choose(seed: int) -> None:
    """Add the rows of each length of the warm-up, scored on training images."""
    for rate in RATES:
        for warmup in WARMUPS:
            what = {"rate": rate, "warmup": warmup, "scored": "held-out"}
            if not rows_so_far(ROWS, seed=seed, **what):
                network = recovered(seed, rate, [RecoverySchedule(warmup=warmup)])
                print(add(measured(held_out(network, seed), seed, **what), ROWS) | {"hits": ""}, flush=True)


def compare(seed: int) -> None:
    """Add the rows of a seed, scored on the test images: the rate alone, and with the default schedule."""
    for rate in RATES:
        for warmup in (CONSTANT, WARMUP):
            what = {"rate": rate, "warmup": warmup, "scored": "test"}
            if not rows_so_far(ROWS, seed=seed, **what):
                network = recovered(seed, rate, [] if warmup == CONSTANT else [RecoverySchedule()])
                print(add(measured(hits(network), seed, **what), ROWS) | {"hits": ""}, flush=True)


def main() -> None:
    """Add rows that are missing, and write the page."""
    options = parser(__doc__)
    options.add_argument("--choose", action="store_true", help="compare lengths of the warm-up on training images")
    options.add_argument("--seeds", type=int, nargs="*", default=[], help="of the comparison on test images")
    given = options.parse_args()
    torch.set_num_threads(1)
    if given.choose:
        choose(CHOSEN_ON)
    for seed in given.seeds:
        compare(seed)
    rows = rows_so_far(ROWS)
    kept = [{name: value for name, value in row.items() if name != "hits"} for row in rows]
    write(NAME, {"rows": kept, "commands": sorted({row["command"] for row in rows})}, markdown(rows))


def found(rows: list[Row], **where: Any) -> list[Row]:
    """Return the rows with these entries."""
    return [row for row in rows if all(row[name] == value for name, value in where.items())]


def markdown(rows: list[Row]) -> str:
    """Render both tables."""
    lines = ["# The learning rate after surgery", "", *made_by(sorted({row["command"] for row in rows}))]
    lines += [
        f"ResNet-20 without half of its MACs in width, reconstructed, then {EPOCHS} epochs of {TRAINED:,} JPEGs of"
    ]
    lines += ["CIFAR-10: SGD with momentum 0.9 and weight decay 0.0005, batches of 50, half of them mirrored. Top-1 in"]
    lines += ["percent on all 10,000 test JPEGs (dense, without this training: 81.0)."]
    return "\n".join([*lines, "", compared(rows), "", *chosen(rows)])


def compared(rows: list[Row]) -> str:
    """Render the rates alone and with the default schedule, on the test images."""
    cells = []
    for rate in sorted(RATES):
        beside = {name: found(rows, scored="test", rate=rate, warmup=name) for name in (CONSTANT, WARMUP)}
        seeds = sorted({row["seed"] for row in beside[CONSTANT]} & {row["seed"] for row in beside[WARMUP]})
        if seeds:
            theirs, ours = (
                np.stack([unpacked(row["hits"], row["n"]) for seed in seeds for row in found(of, seed=seed)])
                for of in beside.values()
            )
            ahead = paired_difference(theirs.mean(0), ours.mean(0), seed=0)
            interval = f"{100 * ahead.value:+.1f} ({100 * ahead.low:+.1f} to {100 * ahead.high:+.1f})"
            each = (
                f"{100 * of.mean():.1f} ({', '.join(f'{100 * h.mean():.1f}' for h in of)})" for of in (theirs, ours)
            )
            cells.append((f"{rate:g}", *each, interval, ", ".join(map(str, seeds))))
    head = ("rate", "constant", "with `RecoverySchedule()`", "ahead by (95% interval)", "seeds")
    note = "Means over the seeds, each seed in brackets; the interval is the paired bootstrap's over images."
    return f"{table(head, cells)}\n\n{note}"


def chosen(rows: list[Row]) -> list[str]:
    """Render what the length of the warm-up was chosen by, on training images."""
    cells = []
    for rate in sorted(RATES):
        scores = [found(rows, scored="held-out", rate=rate, warmup=warmup) for warmup in WARMUPS]
        if all(scores):
            cells.append((f"{rate:g}", *(f"{100 * np.mean([row['value'] for row in of]):.1f}" for of in scores)))
    return [
        "## The length of the warm-up",
        "",
        f"The default, {WARMUP:g} of the steps, was chosen on {HELD_OUT:,} training images that were left out of the",
        f"training after the surgery (seed {CHOSEN_ON}; the dense network has learnt from them, so these are higher):",
        "",
        table(("rate", *(f"warm-up {warmup:g}" for warmup in WARMUPS)), cells),
    ]


if __name__ == "__main__":
    main()
