"""More kinds of units on DeiT-Tiny: layers, blocks, attentions and activations at equal MACs, against today's default.

Planned on training images of tiny_imagenet, scored on validation images of its 200 classes. No training.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import lru_cache, partial
from itertools import islice
from statistics import mean
from typing import Any

import torch

from benchmarks.data.real import deit_tiny
from benchmarks.data.tiny_imagenet import calibration, hits, validation
from benchmarks.depth.graph_depth_rows import Row, add, difference, measured, pruned, rows_so_far, saved_plan, shares
from prunerecover import Budget, Plan
from prunerecover.depth.arguments import DepthConfig
from prunerecover.depth.plan_depth import planner_for
from prunerecover.depth.planner import DepthPlanner
from prunerecover.display.markdown import table

MODEL = "DeiT-Tiny"
SHARES, SAMPLES, SEEDS = (0.2, 0.33), 96, (0, 1, 2)
TESTED = 40  # batches of 50 images
COUNTS: Mapping[float, Mapping[str, int]] = {
    0.2: {"attention": 3, "activation": 3},
    0.33: {"attention": 3, "activation": 6},
}
METHODS: dict[str, dict[str, Any]] = {
    "default": {},
    "joint": {"search": "joint"},
    "ranked once": {"search": "one_shot"},
    "attentions and activations": {"counts": True},
    "blocks": {"kinds": ("block",)},
    "layers, joint": {"kinds": ("layer",), "search": "joint"},
    "attentions, MLPs and blocks, joint": {"kinds": ("attention", "mlp", "block"), "search": "joint"},
    "layers, attentions and blocks, joint": {"kinds": ("layer", "attention", "block"), "search": "joint"},
}
OURS = "default"
OF_ONE_SEED = ("ranked once", "layers, joint", "layers, attentions and blocks, joint")  # far behind


def run(methods: tuple[str, ...] = ()) -> None:
    """Make the rows that are missing."""
    if not rows_so_far(model=MODEL, method="dense"):
        add(scored("dense", 0.0, Plan(), 0.0, SEEDS[0]))
    for method, seed in _of_each_seed(methods or tuple(METHODS)):
        for share in SHARES:
            if not rows_so_far(model=MODEL, method=method, budget=share, seed=seed):
                started = time.perf_counter()
                plan = saved_plan(f"deit-{method}-{share}-{seed}", partial(planned, method, share, seed))
                add(scored(method, share, plan, time.perf_counter() - started, seed))


def wanted() -> list[Row]:
    """Return what each row that this benchmark wants is about."""
    each = _of_each_seed(tuple(METHODS))
    return [{"method": method, "budget": share, "seed": seed} for method, seed in each for share in SHARES]


def _of_each_seed(methods: tuple[str, ...]) -> list[tuple[str, int]]:
    return [(method, seed) for seed in SEEDS for method in methods if seed == SEEDS[0] or method not in OF_ONE_SEED]


def planned(method: str, share: float, seed: int) -> Plan:
    """Plan one budget on the calibration images of a seed."""
    budget = Budget(remove=COUNTS[share]) if METHODS[method].get("counts") else Budget(macs=share)
    plan: Plan = planner_of(method, seed, budget.in_units).plan(budget)
    return plan


@lru_cache(maxsize=1)
def planner_of(method: str, seed: int, in_units: bool) -> DepthPlanner:
    """Return what plans the budgets of a method, with caches that they share."""
    settings = {name: value for name, value in METHODS[method].items() if name != "counts"}
    budget = Budget(remove=COUNTS[SHARES[0]]) if in_units else Budget(macs=SHARES[0])
    every = torch.cat([images for images, _ in calibration(SAMPLES * len(SEEDS))]).split(SAMPLES)
    return planner_for(deit_tiny(), budget, every[SEEDS.index(seed)].split(32), DepthConfig(**settings, seed=seed))


def scored(method: str, share: float, plan: Plan, seconds: float, seed: int) -> Row:
    """Return the row of a plan."""
    dense = deit_tiny()
    other = pruned(dense, plan) if plan.edits else dense
    found = hits(other, list(islice(validation(), TESTED)))
    return measured(
        found,
        seed,
        subject="deit_tiny",
        model=MODEL,
        method=method,
        unit=", ".join(plan.removed),
        budget=share,
        **shares(dense, other, torch.zeros(1, 3, 224, 224)),
        stage="prune_only",
        metric="top1",
        seconds=seconds,
        removed={kind: list(names) for kind, names in plan.removed.items()},
        leaves=sorted({getattr(edit, "leaves", "") or edit.op for edit in plan.edits}),
    )


def section(rows: list[Row]) -> list[str]:
    """Render a table per share."""
    dense = next(row for row in rows if row["method"] == "dense")
    head = ("method", "removed", "MACs left", "parameters left", "seeds", "top-1", "default ahead by", "planning, s")
    lines = [
        f"Planned on {SAMPLES} training images of tiny_imagenet, others for each seed; top-1 in percent on "
        f"{dense['n']:,} validation images of its 200 classes, which nothing here was tuned on; no training. Default "
        "is `plan_depth` with nothing but a budget, and fits what is left; layers leave identities. Units, shares and "
        "seconds are those of the first seed. Ahead: the default minus theirs on the same images, the mean over the "
        "seeds of both, paired 95% interval.",
        "",
        f"Dense: {_percent(dense)}.",
    ]
    for share in SHARES:
        own = {method: _rows_of(rows, method, share) for method in METHODS}
        cells = [_cells(method, found, own[OURS]) for method, found in own.items() if found]
        lines += ["", f"### {share:.0%} of the MACs removed", "", table(head, cells)] if cells else []
    return lines


def _rows_of(rows: list[Row], method: str, share: float) -> list[Row]:
    found = [row for row in rows if row["method"] == method and row["budget"] == share]
    return sorted(found, key=lambda row: row["seed"])


def _cells(method: str, found: list[Row], ours: list[Row]) -> tuple[str, ...]:
    first, values = found[0], [100 * row["value"] for row in found]
    return (
        method,
        ", ".join(f"{len(names)} {kind}" for kind, names in first["removed"].items()),
        f"{first['macs_share']:.1%}",
        f"{first['params_share']:.1%}",
        str(len(found)),
        f"{mean(values):.1f} ({', '.join(f'{value:.1f}' for value in values)})",
        "" if method == OURS else difference(ours, found, 100, 1),
        f"{first['seconds']:.0f}",
    )


def _percent(row: Row) -> str:
    return f"{100 * row['value']:.1f} ({100 * row['ci_low']:.1f} to {100 * row['ci_high']:.1f})"
