"""Recovery as long as training: BoundaryDPT as published against our defaults, on a small ViT and CIFAR-10's JPEGs.

    PRUNERECOVER_DATA=... python -m benchmarks.boundary.long_recovery
    PRUNERECOVER_DATA=... python -m benchmarks.boundary.long_recovery --methods book default --seeds 0 1

The dense ViT is trained here (see `long_recovery_training.py`). Every method removes a share of its MACs, and is scored
on the 10,000 test images untrained, after a tenth of the recovery (with a short schedule of its own) and after the
whole recovery, as long as the training was. The published method uses identities as replacements, ranks by gate
gradients, and takes the split of its polynomial map, from the 22 runs of its published table. All choices are made on
training images. Plans and short runs are kept; no step takes longer than training. To train another network, longer or
on more images, first remove checkpoints/long_recovery, the results and their trials: rows of two networks are not
comparable.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.boundary.long_recovery_training import (
    EPOCHS,
    EXAMPLE,
    HELD_OUT,
    RATE,
    SHORT,
    TENTH,
    TRAINED,
    WEIGHTS,
    calibration,
    dense,
    pruned,
    short_runs,
    train,
)
from benchmarks.data.cifar import cross_entropy, hits
from benchmarks.runner.benchmark import Axis, Benchmark
from benchmarks.runner.page import Column, Line, Table, ahead, counts, grouped, mean_scores, seeds, text, told
from benchmarks.runner.plans import removed, saved_plan
from benchmarks.runner.rows import Figure, Row
from prunerecover import Budget, Plan, merge, plan_boundary, plan_depth
from prunerecover.boundary.designs import axes_and_staircase
from prunerecover.boundary.plan_boundary import PUBLISHED
from prunerecover.cost.macs import count_macs
from prunerecover.cost.statistics import paired_difference
from prunerecover.display.markdown import table

LAYERS = (12, 12)
STAGES = {"untrained": 0, "a tenth": TENTH, "whole": EPOCHS}
NAMES = {"dense": "dense", "book": "BoundaryDPT as published", "default": "DepthPrune default"}


def book(budget: float) -> Plan:
    """BoundaryDPT: gate gradients within the type, identities, the split of a polynomial map of short recoveries."""
    how = {**PUBLISHED, "design": axes_and_staircase(LAYERS), "loss": cross_entropy}
    return plan_boundary(dense(), Budget(macs=budget), batches=calibration(), evaluate=short_runs, **how)


def default(budget: float) -> Plan:
    """Plan of `DepthPrune(Budget(macs=...))`: the units that change the output least, with the best replacements."""
    return plan_depth(dense(), Budget(macs=budget), batches=calibration())


METHODS: dict[str, Callable[[float], Plan]] = {"default": default, "book": book}


def measure(seed: int, budget: float, method: str, stage: str) -> dict[str, Any]:
    """Prune the trained network, recover it and score it on all test images."""
    plan = (
        Plan() if method == "dense" else saved_plan(f"{method}-{budget:.2f}", lambda: METHODS[method](budget), WEIGHTS)
    )
    network, started = pruned(plan), time.perf_counter()
    curve = train(network, STAGES[stage], RATE, seed) if STAGES[stage] else []
    seconds = time.perf_counter() - started
    merge(network)
    return {
        "top1": Figure.of(hits(network)),
        "epochs": STAGES[stage],
        "removed": removed(plan),
        "macs_share": count_macs(network, EXAMPLE) / count_macs(dense(), EXAMPLE),
        "predicted": plan.evidence.get("predicted") if plan.edits else None,
        "held_out": [list(point) for point in curve],
        "seconds": seconds,
    }


def top1(line: Line) -> str:
    """Return the accuracy; of several seeds the mean, with the interval over images."""
    if len(line.rows) == 1:
        return told(line.first.figures["top1"], 2, 100)
    values = mean_scores(line.rows, "top1")
    return told(paired_difference(0 * values, values, seed=0), 2, 100)


def curves(rows: Sequence[Row]) -> list[str]:
    """Return a table of the held-out accuracy on the way through the whole recovery."""
    whole = [row for row in rows if row["held_out"] and row.method != "dense"]
    if not whole:
        return []
    order = {"budget": sorted({row.budget for row in whole}), "method": list(NAMES)}
    ordered = [row for group in grouped(whole, ("budget", "seed", "method"), order) for row in group]
    epochs = [f"{epoch:.0f}" for epoch, _ in ordered[0]["held_out"]]
    cells = [
        (f"{row.budget:.0%}", NAMES[row.method], row["seed"], *(f"{score:.1f}" for _, score in row["held_out"]))
        for row in ordered
    ]
    title = "## Held-out accuracy during the whole recovery, after so many epochs"
    return [title, table(("MACs out", "method", "seed", *epochs), cells)]


DENSE = {"seed": 0, "budget": 0.0, "method": "dense"}
BENCHMARK = Benchmark(
    title="Recovery as long as training: a small ViT on CIFAR-10's JPEGs, 10,000 test images",
    text=f"""A ViT of 12 blocks (width 64, mlp_ratio 4, convolutional stem) trained here for {EPOCHS} epochs of
    {TRAINED:,} training images. Recovery: a tenth is {TENTH} epochs, the whole {EPOCHS}, as long as training; each is a
    schedule of its own, warm-up and cosine, with AdamW, random crops and flips, the same for all methods, by the labels
    alone. Merged before they are scored. Removed: attentions, activations, MLPs, blocks. Short runs behind a map:
    {SHORT} epochs, scored on {HELD_OUT:,} held-out training images. Test images chose nothing. Ahead by: points on the
    same images, paired; with several seeds (of the recovery alone) the mean over them. Intervals are over images: they
    do not hold what another dense network changes. The dense network after the whole has been trained for as long as
    recovered networks have.""",
    measure=measure,
    axes={
        "seed": Axis((0,), open=True),
        "budget": Axis((0.33, 0.50), open=True),
        "method": Axis(tuple(METHODS)),
        "stage": Axis(tuple(STAGES)),
    },
    references=[{**DENSE, "stage": "untrained"}, {**DENSE, "stage": "whole"}],
    skipped=lambda seed, stage, **names: stage == "untrained" and seed > 0,  # the same score
    tables=(
        Table(
            [text("method"), text("stage", "recovery"), Column("top-1 (95%)", top1)],
            line=("stage",),
            where=lambda row: row.method == "dense",
        ),
        Table(
            [
                text("stage", "recovery"),
                Column("method", lambda line: NAMES[line.first.method]),
                counts("removed", "removed", ("attention", "activation", "mlp", "block")),
                text("macs_share", "MACs share", "{:.3f}"),
                seeds(),
                Column("top-1 (95%)", top1),
                ahead("top1", "ahead of the published method by", 1, 100, same=("stage",), turned=True, method="book"),
            ],
            title="{budget:.0%} of the MACs out",
            by=("budget",),
            line=("stage", "method"),
            where=lambda row: row.method != "dense",
        ),
    ),
    closing=curves,
)

if __name__ == "__main__":
    BENCHMARK.main()
