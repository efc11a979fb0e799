"""Does the accuracy map pick a good split on a real model? DeiT-Tiny, 8 layers removed, all 9 splits, two seeds.

    PRUNERECOVER_DATA=... python -m benchmarks.boundary.boundary_map
    PRUNERECOVER_DATA=... python -m benchmarks.boundary.boundary_map --seeds 0 --attentions 0 1 2

Every split is recovered once per seed, for one epoch of 2,000 training images. The map sees the accuracy on 1,000 other
training images, of at most 5 runs, three spread and two chosen, and no divergences; its pick is judged on the 5,000
validation images against the split that is best there. A repeated run takes the other seed's. Resumable: runs in the
results are not made again. One run takes about 4 minutes on a core, one split's plan up to 8.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.progress import track

from benchmarks.boundary.boundary_methods import default_planner, pruned
from benchmarks.data.real import (
    CHECKPOINTS,
    commands_so_far,
    kept_plan,
    made_by,
    packed,
    parser,
    stored,
    unpacked,
    write,
)
from benchmarks.data.tiny_imagenet import data, hits, recover
from prunerecover import Budget, MapPoint, Plan, fit_map
from prunerecover.boundary.designs import Split, feasible_splits, spread
from prunerecover.boundary.feasible import TYPES
from prunerecover.boundary.next_split import FIRST, next_split
from prunerecover.cost.statistics import Interval
from prunerecover.display.markdown import table

NAME, LAYERS, N_REMOVE, RUNS, SEEDS = "boundary_map", 12, 8, 5, (0, 1)
IMAGES, HELD_OUT = 2000, 1000
PLANS = CHECKPOINTS / "boundary_map_plans"
SPLITS = feasible_splits(LAYERS, n_remove=N_REMOVE)
Table = dict[tuple[Split, int], dict[str, Any]]


def main() -> None:
    """Make the runs that are missing, then judge the map."""
    command_line = parser(__doc__)
    command_line.add_argument("--seeds", nargs="*", type=int, default=SEEDS)
    command_line.add_argument("--attentions", nargs="*", type=int, default=[split[0] for split in SPLITS])
    options = command_line.parse_args()
    rows = stored(NAME)
    made = {((row["attention"], row["activation"]), row["seed"]) for row in rows}
    wanted = [(split, seed) for seed in options.seeds for split in SPLITS if split[0] in options.attentions]
    missing = [key for key in wanted if key not in made]
    for split, seed in track(missing, "recovering each split"):
        rows.append(run(split, seed))
        save(rows)
    save(rows)


def run(split: Split, seed: int) -> dict[str, Any]:
    """Prune one split by the default selection, recover, and score."""
    plan = planned(split)
    network = recover(pruned(plan), IMAGES, seed)
    source = data(1, HELD_OUT)
    source.setup("fit")
    held_out = hits(network, source.val_dataloader()).mean()
    values = hits(network)
    return {
        "attention": split[0],
        "activation": split[1],
        "seed": seed,
        "removed": {kind: list(names) for kind, names in plan.removed.items()},
        "held_out_top1": 100 * float(held_out),
        "top1": 100 * float(values.mean()),
        "n": len(values),
        "hits": packed(values),
    }


def planned(split: Split) -> Plan:
    """Return the default plan of a split: that of an earlier run, if there is one."""
    budget = Budget(remove=dict(zip(TYPES, split, strict=True)))
    return kept_plan(PLANS / f"{split[0]}-{split[1]}.json", lambda: default_planner().plan(budget))


def picked(
    table: Table, seed: int, runs: int = RUNS, divergences: Mapping[Split, float] | None = None
) -> tuple[Split, int]:
    """Return the split that is picked from one seed's runs, three spread and the others chosen, and their number."""
    asked: list[Split] = list(spread(SPLITS, FIRST))
    points = [point(table, split, seed) for split in asked]
    while len(points) < runs:
        split = next_split(points, SPLITS, LAYERS, divergences=divergences)
        again = sum(split == other for other in asked)
        points.append(point(table, split, SEEDS[(SEEDS.index(seed) + again) % len(SEEDS)]))
        asked.append(split)
    return fit_map(points, LAYERS, divergences=divergences).best(splits=SPLITS).split, len(asked)


def point(table: Table, split: Split, seed: int) -> MapPoint:
    """Return what the map sees of one run."""
    return MapPoint(*split, table[split, seed]["held_out_top1"])


def regret(table: Table, picks: list[Split]) -> Interval:
    """Return by how many points the best split beats the picks on the validation images, with a bootstrap interval.

    Which split is best is decided anew in every resample, as the mean over seeds.
    """
    scores = np.array([np.mean([of(table, split, seed) for seed in SEEDS], axis=0) for split in SPLITS])  # (9, 5000)
    chosen = [SPLITS.index(split) for split in picks]
    rng = np.random.default_rng(0)
    draws = []
    for _ in range(2000):
        means = scores[:, rng.integers(scores.shape[1], size=scores.shape[1])].mean(axis=1)
        draws.append(means.max() - means[chosen].mean())
    means = scores.mean(axis=1)
    low, high = np.quantile(draws, (0.025, 0.975))
    return Interval(100 * float(means.max() - means[chosen].mean()), 100 * float(low), 100 * float(high))


def of(table: Table, split: Split, seed: int) -> NDArray[np.float64]:
    """Return the validation hits of one run."""
    row = table[split, seed]
    return unpacked(row["hits"], row["n"])


def save(rows: list[dict[str, Any]]) -> None:
    """Write JSON and Markdown, with all commands that made rows."""
    commands = commands_so_far(NAME)
    write(NAME, {"commands": commands, "rows": rows}, markdown(rows, commands))


def markdown(rows: list[dict[str, Any]], commands: list[str]) -> str:
    """Render the runs, and the verdict once all are there."""
    runs: Table = {((row["attention"], row["activation"]), row["seed"]): row for row in rows}
    cells = [
        (row["attention"], row["activation"], row["seed"], f"{row['held_out_top1']:.1f}", f"{row['top1']:.2f}")
        for row in sorted(rows, key=lambda r: (r["attention"], r["seed"]))
    ]
    lines = [
        "# The accuracy map on real DeiT-Tiny, 8 layers removed",
        "",
        *made_by(commands),
        "Held out: 1,000 training images, which the map sees. Validation: 5,000 images, on which its picks are judged.",
        "",
        table(("attentions removed", "activations removed", "seed", "held-out top-1", "validation top-1"), cells),
    ]
    if len(runs) == len(SPLITS) * len(SEEDS):
        picks = [picked(runs, seed) for seed in SEEDS]
        found = regret(runs, [split for split, _ in picks])
        told = ", ".join(f"{split} of {count} runs" for split, count in picks)
        lines += ["", f"Picks (attentions, activations removed), by seed: {told}."]
        lines += [f"Mean regret: {found.value:.2f} points ({found.low:.2f} to {found.high:.2f}, paired bootstrap)."]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
