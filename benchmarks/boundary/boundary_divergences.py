"""Relation of divergences before training to accuracies after a short recovery: real DeiT-Tiny, nine splits.

    PRUNERECOVER_DATA=... python -m benchmarks.boundary.boundary_divergences

Recoveries come from `boundary_map`: every split of eight layers, two seeds, one epoch of 2,000 images. The divergence
of a split is the planned network's on held-out calibration samples, without training. The distance of the accuracies
from a straight line in the divergence sets the scatter of the synthetic divergences in `map_synthetic`. The map then
picks from three to five of the runs, with the divergences and without them. About a minute a split on one core.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.boundary.boundary_map import SEEDS, SPLITS, picked, regret, runs_of
from benchmarks.boundary.boundary_methods import default_planner
from benchmarks.runner.benchmark import Axis, Benchmark
from benchmarks.runner.page import Table, figure, text, told
from benchmarks.runner.rows import Figure, Results, Row
from prunerecover.display.markdown import table
from prunerecover.model.evaluation import ordinary_arithmetic

RUNS = (3, 4, 5)


def measure(attention: int) -> dict[str, Any]:
    """Return the divergence of a split with the best replacement of each unit, and the mean accuracy of its runs."""
    planner, runs = default_planner(), Results.read("boundary_map").find(attention=attention)
    gone = {name for names in runs[0]["removed"].values() for name in names}
    with ordinary_arithmetic():
        divergence = planner.divergence_without([unit for unit in planner.units if unit.name in gone])
    top1 = float(np.mean([run.figures["top1"].value for run in runs]))
    return {"activation": runs[0]["activation"], "divergence": Figure(divergence), "top1": Figure(top1)}


def relation(rows: Sequence[Row]) -> str:
    """Return the least-squares line through accuracies over divergences, and the scatter around it."""
    found, share = (np.array([row.figures[name].value for row in rows]) for name in ("divergence", "top1"))
    top1 = 100 * share
    slope, dense = np.polyfit(found, top1, 1)
    off, freedom = top1 - dense - slope * found, len(rows) - 2
    scatter, relative = np.sqrt(off @ off / freedom), np.sqrt(np.sum((off / (slope * found)) ** 2) / freedom)
    return (
        f"Line: {dense:.1f} - {-slope:.1f} x divergence; correlation {np.corrcoef(found, top1)[0, 1]:.3f}; scatter "
        f"{scatter:.2f} points, {relative:.1%} of what is lost."
    )


def picks(rows: Sequence[Row]) -> str:
    """Return a table of the map's picks from each seed's runs, with divergences and without, and the regret."""
    runs = runs_of(Results.read("boundary_map").rows)
    seen = {(row["attention"], row["activation"]): row.figures["divergence"].value for row in rows}
    lines = []
    for known, named in ((seen, "seen"), (None, "not seen")):
        for count in RUNS:
            splits = [picked(runs, seed, count, known) for seed in SEEDS]
            lines.append((count, named, ", ".join(map(str, splits)), told(regret(runs, splits), 2)))
    return table(("runs", "divergences", "picks, by seed", "mean regret (paired 95% interval)"), lines)


def closing(rows: Sequence[Row]) -> list[str]:
    """Return the line and the picks, once all splits are there."""
    judged = "What the map picks from the runs of either seed, judged on the 5,000 validation images:"
    return [relation(rows), judged, picks(rows)] if len(rows) == len(SPLITS) else []


BENCHMARK = Benchmark(
    name="boundary_divergences",
    doc=__doc__,
    title="Divergence before training and accuracy after it: DeiT-Tiny, 8 layers removed",
    text="""Top-1: of 5,000 validation images after one epoch of 2,000 training images, the mean of two seeds ([the
    runs](boundary_map.md)). Divergence: of the outputs as planned, on held-out calibration samples.""",
    measure=measure,
    axes={"attention": Axis(tuple(split[0] for split in SPLITS))},
    threads=0,
    tables=(
        Table(
            [
                text("attention", "attentions removed"),
                text("activation", "activations removed"),
                figure("divergence", "divergence", 3),
                figure("top1", "top-1 recovered", 2, 100),
            ],
            line=("attention",),
        ),
    ),
    closing=closing,
)
main = BENCHMARK.main

if __name__ == "__main__":
    main()
