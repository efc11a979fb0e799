"""More kinds of units on DeiT-Tiny: layers, blocks, attentions and activations at equal MACs, against today's default.

Planned on training images of tiny_imagenet, scored on validation images of its 200 classes, without training and, for
one seed, after the same short recovery.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import lru_cache, partial
from itertools import islice, product
from statistics import mean
from typing import Any

import torch

from benchmarks.data.real import deit_tiny
from benchmarks.data.tiny_imagenet import calibration, hits, recover, validation
from benchmarks.depth.graph_depth_rows import (
    Row,
    add,
    difference,
    measured,
    planned_before,
    pruned,
    rows_so_far,
    saved_plan,
    shares,
)
from prunerecover import Budget, Plan
from prunerecover.depth.arguments import DepthConfig
from prunerecover.depth.plan_depth import planner_for
from prunerecover.depth.planner import DepthPlanner
from prunerecover.display.markdown import table
from prunerecover.model.batches import ModelInputs
from prunerecover.session.session import Session

MODEL = "DeiT-Tiny"
SHARES, SAMPLES, SEEDS = (0.2, 0.33), 96, (0, 1, 2)
TESTED = 40  # batches of 50 images
STAGES, RECOVERED_ON = ("prune_only", "recovered"), 1000  # images of the recovery's only epoch
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
        add(scored("dense", 0.0, Plan(), 0.0, SEEDS[0], STAGES[0]))
    for row in wanted():
        if (not methods or row["method"] in methods) and not rows_so_far(model=MODEL, **row):
            started = time.perf_counter()
            plan = plan_of(row["method"], row["budget"], row["seed"])
            add(scored(plan=plan, seconds=time.perf_counter() - started, share=row.pop("budget"), **row))


def wanted() -> list[Row]:
    """Return what each row that this benchmark wants is about."""
    return [
        {"method": method, "budget": share, "seed": seed, "stage": stage}
        for stage in STAGES
        for seed in SEEDS
        for method in METHODS
        for share in SHARES
        if seed == SEEDS[0] or (method not in OF_ONE_SEED and stage == STAGES[0])
    ]


def plan_of(method: str, share: float, seed: int) -> Plan:
    """Return the plan of an earlier run, or make it."""
    rows = rows_so_far(model=MODEL, method=method, budget=share, seed=seed, stage=STAGES[0])
    if rows and "layer" in rows[0]["removed"]:  # layers leave nothing that was fitted
        example = ModelInputs((torch.zeros(1, 3, 224, 224),))
        return planned_before(deit_tiny(), example, METHODS[method]["kinds"], rows[0])
    return saved_plan(f"deit-{method}-{share}-{seed}", partial(planned, method, share, seed))


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
    return planner_for(
        Session(deit_tiny(), every[SEEDS.index(seed)].split(32)), budget, DepthConfig(**settings, seed=seed)
    )


def scored(method: str, share: float, plan: Plan, seconds: float, seed: int, stage: str) -> Row:
    """Return the row of a plan."""
    dense = deit_tiny()
    other = pruned(dense, plan) if plan.edits else dense
    other = recover(other, RECOVERED_ON, seed) if stage == "recovered" else other
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
        stage=stage,
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
        f"{dense['n']:,} validation images of its 200 classes, which nothing here was tuned on. Default is "
        "`plan_depth` with nothing but a budget, and fits what is left; layers leave identities. Units, shares and "
        "seconds are those of the first seed. Ahead: the default minus theirs on the same images, the mean over the "
        f"seeds of both, paired 95% interval. Recovered: one epoch of {RECOVERED_ON:,} training images with "
        "distillation from the dense network, which also adapts to the 200 classes.",
        "",
        f"Dense: {_percent(dense)}.",
    ]
    for share, (stage, title) in product(SHARES, zip(STAGES, ("without training", "recovered"), strict=True)):
        there = [row for row in rows if row["budget"] == share and row["stage"] == stage]
        own = {method: _rows_of(there, method) for method in METHODS}
        cells = [_cells(method, found, own[OURS]) for method, found in own.items() if found]
        lines += ["", f"### {share:.0%} of the MACs removed, {title}", "", table(head, cells)] if cells else []
    return lines


def _rows_of(rows: list[Row], method: str) -> list[Row]:
    return sorted((row for row in rows if row["method"] == method), key=lambda row: row["seed"])


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
        f"{first['seconds']:.0f}" if first["stage"] == STAGES[0] else "",
    )


def _percent(row: Row) -> str:
    return f"{100 * row['value']:.1f} ({100 * row['ci_low']:.1f} to {100 * row['ci_high']:.1f})"
