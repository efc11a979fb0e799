"""A budget in a single surgery, and in three with an epoch after each, at equal epochs.

    PRUNERECOVER_DATA=... python -m benchmarks.recovery.rounds --subjects ResNet-56 DeiT-Tiny

WidthPrune and RecoverySchedule in a Trainer, three epochs. Once: all goes before the first epoch. In three steps: a
third of the budget before each. 2 to 6 minutes a fit on a core.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from torch.optim import AdamW

from benchmarks.data import cifar, tiny_imagenet
from benchmarks.recovery.fits import deit, fit, resnet, shuffled
from benchmarks.runner.benchmark import Axis, Benchmark
from benchmarks.runner.page import Table, across, ahead, figure, mean, seeds, text
from benchmarks.runner.plans import shares
from benchmarks.runner.rows import Figure, Row
from prunerecover import Budget, PruneSchedule, RecoverySchedule, WidthPrune

EPOCHS, TIMES, TESTED, CALIBRATION = 3, 3, 2000, 64
SCHEDULES = {"once": PruneSchedule(), "in three steps": PruneSchedule(every=1, times=TIMES)}
ONCE, STEPS = SCHEDULES
BASE: dict[str, Any] = {"method": ONCE, "same": ("budget",)}


SUBJECTS = {
    "ResNet-56": resnet(
        "ResNet-56",
        text="2,000 JPEGs of CIFAR-10 an epoch, SGD with momentum at 0.02, planned and reconstructed on 64 of them",
        loader=lambda seed: shuffled(cifar.training_images(2000, seed), 50),
        scores=lambda network: cifar.hits(network, n=TESTED),
        rates=(0.02,),
    ),
    "DeiT-Tiny": deit(
        TESTED,
        text="600 images of tiny_imagenet's 200 classes an epoch, AdamW at 0.0001, planned on 64 of them",
        loader=lambda seed: shuffled(tiny_imagenet.training_images(600), 25),
        optimizer=partial(AdamW, weight_decay=0.01),
        rates=(1e-4,),
    ),
}


def measure(seed: int, model: str, budget: float, method: str) -> dict[str, Any]:
    """Prune and train in a single fit, and score."""
    subject, dense = SUBJECTS[model], SUBJECTS[model].dense()
    if method == "dense":
        return {"top1": Figure.of(subject.scores(dense))}
    how: dict[str, Any] = {"calibration": CALIBRATION, "merge": "never", "seed": seed}
    surgeon, started = WidthPrune(Budget(macs=budget), schedule=SCHEDULES[method], **how), time.perf_counter()
    network = fit(subject, subject.rates[0], EPOCHS, seed, [surgeon, RecoverySchedule(lr=None)])
    seconds, example = time.perf_counter() - started, subject.loader(0).dataset[0][0][None]
    return {"top1": Figure.of(subject.scores(network)), "seconds": seconds, **shares(dense, network, example)}


def about(rows: Sequence[Row]) -> str:
    """Return the line above a table."""
    dense = [f"{100 * row.figures['top1'].value:.1f}" for row in rows if row.method == "dense"]
    return f"{SUBJECTS[rows[0]['model']].text}; dense {', '.join(dense)}."


BENCHMARK = Benchmark(
    name="prune_rounds",
    title="One surgery or several",
    text=f"""`WidthPrune` with `RecoverySchedule(lr=None)`, {EPOCHS} epochs. Once: all of the budget goes before the
    first epoch. In three steps: `PruneSchedule(every=1, times={TIMES})`, a third of it before each epoch, planned anew
    each time, and a warm-up and a decay to zero in each epoch. Top-1 in percent on {TESTED:,} test images; ahead: on
    the same images, with the paired 95% interval over images, which says nothing of other seeds.""",
    measure=measure,
    axes={
        "seed": Axis((0,), open=True),
        "model": Axis(tuple(SUBJECTS), "--subjects"),
        "budget": Axis((0.33, 0.5, 0.7), open=True),
        "method": Axis(tuple(SCHEDULES), "--schedules"),
    },
    references=[{"seed": 0, "model": model, "budget": 0.0, "method": "dense"} for model in SUBJECTS],
    skipped=lambda seed, model, budget, method: model == "DeiT-Tiny" and budget == 0.7,
    tables=(
        Table(
            [
                text("budget", "MACs out", "{:.0%}"),
                seeds(),
                *across(
                    "method",
                    tuple(SCHEDULES),
                    [mean("macs_share", "MACs left, {}"), figure("top1", "{}", 1, 100, ends=False)],
                ),
                *across(
                    "method",
                    (STEPS,),
                    [ahead("top1", "{} ahead by", 1, 100, same=("budget",), turned=True, method=ONCE)],
                ),
            ],
            title="{model}",
            by=("model",),
            line=("budget",),
            where=lambda row: row.method != "dense",
            text=about,
        ),
    ),
)

if __name__ == "__main__":
    BENCHMARK.main()
