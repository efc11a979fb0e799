"""More kinds of units on DeiT-Tiny: layers, blocks, attentions and activations at equal MACs, against today's default.

Planned on training images of tiny_imagenet, scored on validation images of its 200 classes. No training.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import cache, partial
from itertools import islice
from typing import Any

import torch

from benchmarks.data.real import deit_tiny
from benchmarks.data.tiny_imagenet import calibration, hits, validation
from benchmarks.depth.graph_depth_rows import Row, add, difference, measured, pruned, rows_so_far, saved_plan, shares
from prunerecover import Budget, Plan
from prunerecover.depth.arguments import DepthConfig
from prunerecover.depth.plan_depth import planner_for
from prunerecover.display.markdown import table

MODEL = "DeiT-Tiny"
SHARES, SAMPLES, SEED = (0.2, 0.33), 96, 0
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


def run(methods: tuple[str, ...] = ()) -> None:
    """Make the rows that are missing."""
    if not rows_so_far(model=MODEL, method="dense"):
        add(scored("dense", 0.0, Plan(), 0.0))
    for method in methods or tuple(METHODS):
        for share in SHARES:
            if not rows_so_far(model=MODEL, method=method, budget=share):
                started = time.perf_counter()
                plan = saved_plan(f"deit-{method}-{share}", partial(planned, method, share))
                add(scored(method, share, plan, time.perf_counter() - started))


def wanted() -> list[Row]:
    """Return what each row that this benchmark wants is about."""
    return [{"method": method, "budget": share} for method in METHODS for share in SHARES]


def planned(method: str, share: float) -> Plan:
    """Plan one budget."""
    budget = Budget(remove=COUNTS[share]) if METHODS[method].get("counts") else Budget(macs=share)
    plan: Plan = planner_of(method, budget if budget.in_units else Budget(macs=SHARES[0])).plan(budget)
    return plan


@cache
def _planners() -> dict[str, Any]:
    return {}


def planner_of(method: str, budget: Budget) -> Any:
    """Return what plans the budgets of a method, with caches that they share."""
    settings = {name: value for name, value in METHODS[method].items() if name != "counts"}
    if method not in _planners():
        batches = [images for images, _ in calibration(SAMPLES)]
        _planners()[method] = planner_for(deit_tiny(), budget, batches, DepthConfig(**settings, seed=SEED))
    return _planners()[method]


def scored(method: str, share: float, plan: Plan, seconds: float) -> Row:
    """Return the row of a plan."""
    dense = deit_tiny()
    other = pruned(dense, plan) if plan.edits else dense
    found = hits(other, list(islice(validation(), TESTED)))
    return measured(
        found,
        SEED,
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
    lines = [
        f"Planned on {SAMPLES} training images of tiny_imagenet, top-1 in percent on {dense['n']:,} validation images "
        "of its 200 classes, which nothing here was tuned on; no training. Default is `plan_depth` with nothing but a "
        "budget, and fits what is left; layers leave identities. Ahead: the default minus theirs on the same images, "
        "paired 95% interval.",
        "",
        f"Dense: {_percent(dense)}.",
    ]
    for share in SHARES:
        own = {row["method"]: row for row in rows if row["budget"] == share and row["method"] != "dense"}
        cells = [
            (
                method,
                ", ".join(f"{len(names)} {kind}" for kind, names in own[method]["removed"].items()),
                f"{own[method]['macs_share']:.1%}",
                f"{own[method]['params_share']:.1%}",
                _percent(own[method]),
                "" if method == OURS or OURS not in own else difference([own[OURS]], [own[method]], 100, 1),
                f"{own[method]['seconds']:.0f}",
            )
            for method in METHODS
            if method in own
        ]
        head = ("method", "removed", "MACs left", "parameters left", "top-1", "default ahead by", "planning, s")
        lines += ["", f"### {share:.0%} of the MACs removed", "", table(head, cells)] if cells else []
    return lines


def _percent(row: Row) -> str:
    return f"{100 * row['value']:.1f} ({100 * row['ci_low']:.1f} to {100 * row['ci_high']:.1f})"
