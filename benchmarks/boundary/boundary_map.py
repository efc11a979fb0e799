"""Does the accuracy map pick a good split on a real model? DeiT-Tiny, 8 layers removed, all 9 splits, two seeds.

    PRUNERECOVER_DATA=... python -m benchmarks.boundary.boundary_map
    PRUNERECOVER_DATA=... python -m benchmarks.boundary.boundary_map --seeds 0 --attentions 0 1 2

Every split is recovered once per seed, for one epoch of 2,000 training images. The map sees accuracies on 1,000 other
training images, of at most 5 runs (three spread, two chosen), and no divergences; its pick is compared on the 5,000
validation images with the best split there. A repeated run takes the other seed's result. A run takes about 4 minutes
on a core, a plan up to 8.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.boundary.boundary_methods import default_planner, pruned
from benchmarks.data.tiny_imagenet import data, hits, recover
from benchmarks.runner.benchmark import Axis, Benchmark
from benchmarks.runner.page import Table, figure, text, told
from benchmarks.runner.plans import removed, saved_plan
from benchmarks.runner.rows import CHECKPOINTS, Figure, Row
from prunerecover import Budget, MapPoint, fit_map
from prunerecover.boundary.designs import Split, feasible_splits, spread
from prunerecover.boundary.feasible import TYPES
from prunerecover.boundary.next_split import FIRST, next_split
from prunerecover.cost.statistics import Interval

LAYERS, N_REMOVE, RUNS, SEEDS = 12, 8, 5, (0, 1)
IMAGES, HELD_OUT = 2000, 1000
SPLITS = feasible_splits(LAYERS, n_remove=N_REMOVE)
Runs = dict[tuple[Split, int], Row]


def measure(seed: int, attention: int) -> dict[str, Any]:
    """Prune a split by the default selection, recover, and score."""
    (split,) = (split for split in SPLITS if split[0] == attention)
    budget = Budget(remove=dict(zip(TYPES, split, strict=True)))
    name = f"{split[0]}-{split[1]}"
    plan = saved_plan(name, lambda: default_planner().plan(budget), CHECKPOINTS / "boundary_map_plans")
    network = recover(pruned(plan), IMAGES, seed)
    source = data(1, HELD_OUT)
    source.setup("fit")
    held_out = Figure.of(hits(network, source.val_dataloader()))
    return {"activation": split[1], "held_out": held_out, "top1": Figure.of(hits(network)), "removed": removed(plan)}


def runs_of(rows: Sequence[Row]) -> Runs:
    """Return rows by split and seed."""
    return {((row["attention"], row["activation"]), row["seed"]): row for row in rows}


def picked(runs: Runs, seed: int, count: int = RUNS, divergences: Mapping[Split, float] | None = None) -> Split:
    """Return the map's pick after `count` runs of a seed, three spread and the rest chosen."""
    asked: list[Split] = list(spread(SPLITS, FIRST))
    points = [_point(runs, split, seed) for split in asked]
    while len(points) < count:
        split = next_split(points, SPLITS, LAYERS, divergences=divergences)
        again = sum(split == other for other in asked)
        points.append(_point(runs, split, SEEDS[(SEEDS.index(seed) + again) % len(SEEDS)]))
        asked.append(split)
    return fit_map(points, LAYERS, divergences=divergences).best(splits=SPLITS).split


def _point(runs: Runs, split: Split, seed: int) -> MapPoint:
    return MapPoint(*split, 100 * runs[split, seed].figures["held_out"].value)


def regret(runs: Runs, picks: Sequence[Split]) -> Interval:
    """Return by how many points the best split beats the picks on the validation images, with a bootstrap interval.

    Every resample decides the best split anew, by the mean over seeds.
    """
    scores = np.array([np.mean([runs[split, s].figures["top1"].scores for s in SEEDS], axis=0) for split in SPLITS])
    chosen = [SPLITS.index(split) for split in picks]
    rng = np.random.default_rng(0)
    draws = []
    for _ in range(2000):
        means = scores[:, rng.integers(scores.shape[1], size=scores.shape[1])].mean(axis=1)
        draws.append(means.max() - means[chosen].mean())
    means = scores.mean(axis=1)
    low, high = np.quantile(draws, (0.025, 0.975))
    return Interval(100 * float(means.max() - means[chosen].mean()), 100 * float(low), 100 * float(high))


def verdict(rows: Sequence[Row]) -> list[str]:
    """Return the map's picks, once all runs are there."""
    runs = runs_of(rows)
    if len(runs) < len(SPLITS) * len(SEEDS):
        return []
    picks = [picked(runs, seed) for seed in SEEDS]
    found, named = regret(runs, picks), ", ".join(map(str, picks))
    return [
        f"Picks (attentions, activations removed) of {RUNS} runs, by seed: {named}. "
        f"Mean regret: {told(found, 2)} points, paired bootstrap."
    ]


BENCHMARK = Benchmark(
    name="boundary_map",
    doc=__doc__,
    title="The accuracy map on real DeiT-Tiny, 8 layers removed",
    text="""Held out: 1,000 training images, which the map sees. Validation: 5,000 images, on which its picks are
    judged.""",
    measure=measure,
    axes={"seed": Axis(SEEDS), "attention": Axis(tuple(split[0] for split in SPLITS))},
    threads=0,
    tables=(
        Table(
            [
                text("attention", "attentions removed"),
                text("activation", "activations removed"),
                text("seed"),
                figure("held_out", "held-out top-1", 1, 100, ends=False),
                figure("top1", "validation top-1", 2, 100, ends=False),
            ],
            line=("attention", "seed"),
        ),
    ),
    closing=verdict,
)
main = BENCHMARK.main

if __name__ == "__main__":
    main()
