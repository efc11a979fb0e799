"""Depth alone on networks that only the graph knows, with fitted stand-ins and without, before any training.

    PRUNERECOVER_DATA=... python -m benchmarks.depth.fitted.fitted_depth

plans for networks of CIFAR-10 on unlabelled training images and scores what is left on the 10,000 test JPEGs. Networks
whose weights are not there are trained first: `python -m benchmarks.width.cifar_models --models ...`. A row takes 1 to
10 minutes on a core, and is kept: the command goes on where it stopped.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks.data.cifar import EXAMPLE, batches, hits
from benchmarks.data.real import CHECKPOINTS, RESULTS, made_by, parser, write
from benchmarks.depth.graph_depth_rows import (
    Row,
    add,
    difference,
    measured,
    pruned,
    rows_so_far,
    saved_plan,
    shares,
    without_samples,
)
from benchmarks.width.cifar_models import load
from prunerecover import Budget, Plan, plan_depth
from prunerecover.cost.latency import latency_ratio
from prunerecover.display.markdown import table
from prunerecover.model.batches import as_inputs

NAME = "fitted_depth"
ROWS, PLANS = RESULTS / f"{NAME}.rows.jsonl", CHECKPOINTS / NAME
SAMPLES, CALIBRATED = 64, 256  # of a batch, and in all
OURS, BARE = "fitted", "nothing fitted"
METHODS: dict[str, dict[str, Any]] = {BARE: {"replace": "identity"}, OURS: {}}
BUDGETS = {
    "ResNet-56": (Budget(latency=0.33), Budget(macs=0.33)),
    "ConvNeXt": (Budget(macs=0.2), Budget(macs=0.33)),
    "Swin": (Budget(macs=0.2), Budget(macs=0.33)),
    "MobileNetV2": (Budget(macs=0.2), Budget(macs=0.33)),
}


def make(model: str, budget: Budget, method: str, seed: int) -> None:
    """Make a row: plan, and score what is left."""
    dense, asked = load(model), named(budget)
    started = time.perf_counter()
    plan = saved_plan(f"{model}-{asked}-{method}-{seed}", partial(planned, dense, budget, method, seed), PLANS)
    seconds = time.perf_counter() - started
    left = pruned(dense, plan)
    example = as_inputs(batches(SAMPLES, seed, SAMPLES)[0])
    add(
        measured(
            hits(left),
            seed,
            model=model,
            budget=asked,
            method=method,
            **shares(dense, left, EXAMPLE),
            latency_share=latency_ratio(dense, left, example).ratio.value,
            seconds=seconds,
            removed={kind: len(names) for kind, names in plan.removed.items()},
            leaves=leaves(plan),
        ),
        ROWS,
    )


def planned(dense: nn.Module, budget: Budget, method: str, seed: int) -> Plan:
    """Plan with one method."""
    return plan_depth(dense, budget, batches=batches(CALIBRATED, seed, SAMPLES), seed=seed, **METHODS[method])


def leaves(plan: Plan) -> dict[str, int]:
    """Return how many units leave what."""
    found = [edit.leaves for edit in plan.edits if edit.op == "bypass"]
    return {one: found.count(one) for one in sorted(set(found))}


def named(budget: Budget) -> str:
    """Return a budget in words."""
    assert budget.share is not None
    cost, share = budget.share
    return f"{share:.0%} of the {'MACs' if cost == 'macs' else cost}"


def markdown(rows: list[Row]) -> str:
    """Render the page."""
    dense = {row["model"]: row["value"] for row in rows if row["method"] == "dense"}
    cells = []
    for model, budgets in BUDGETS.items():
        for budget in map(named, budgets):
            there = [row for row in rows if (row["model"], row["budget"]) == (model, budget)]
            ours, bare = ([row for row in there if row["method"] == method] for method in (OURS, BARE))
            for method, own in ((BARE, bare), (OURS, ours)):
                if own:
                    ahead = difference(ours, bare, 100, 1) if method == OURS else ""
                    cells.append((f"{model} ({100 * dense[model]:.1f})", budget, method, *figures(own), ahead))
    head = (
        "network (dense)",
        "out",
        "in the place of units",
        "top-1",
        "MACs left",
        "latency left",
        "units leave",
        "ahead by",
    )
    said = (
        f"CIFAR-10, planned with `plan_depth` on {CALIBRATED} unlabelled training images, untrained afterwards. "
        "Top-1 in percent on the 10,000 test JPEGs; of several seeds the mean. Ahead by: over nothing fitted, on the "
        'same images, with the paired 95% interval. Nothing fitted: `replace="identity"`. ConvNeXt, Swin and '
        "MobileNetV2 are small ones that `benchmarks.width.cifar_models` trains for some minutes."
    )
    commands = sorted({row["command"] for row in rows})
    return "\n".join(
        ["# Fitted stand-ins in depth, on the graph", "", *made_by(commands), said, "", table(head, cells), ""]
    )


def figures(rows: list[Row]) -> tuple[str, ...]:
    """Return the cells of rows of several seeds."""
    each = ", ".join(f"{100 * row['value']:.1f}" for row in rows)
    top1 = f"{sum(100 * row['value'] for row in rows) / len(rows):.1f}" + (f" ({each})" if len(rows) > 1 else "")
    macs, clock = (sum(row[name] for row in rows) / len(rows) for name in ("macs_share", "latency_share"))
    left = ", ".join(f"{count} {what}" for what, count in rows[0]["leaves"].items())
    return top1, f"{macs:.1%}", f"{clock:.1%}", left


def main() -> None:
    """Make the rows that are missing, and write the page."""
    arguments = parser(__doc__)
    arguments.add_argument("--models", nargs="+", choices=BUDGETS, default=list(BUDGETS))
    arguments.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    arguments.add_argument("--seeds", nargs="+", type=int, default=[0])
    options = arguments.parse_args()
    torch.set_num_threads(1)
    for model in options.models:
        if not rows_so_far(ROWS, model=model, method="dense"):
            add(measured(hits(load(model)), 0, model=model, budget="", method="dense"), ROWS)
        for seed in options.seeds:
            for budget in BUDGETS[model]:
                for method in options.methods:
                    if not rows_so_far(ROWS, model=model, budget=named(budget), method=method, seed=seed):
                        make(model, budget, method, seed)
    rows = rows_so_far(ROWS)
    write(NAME, {"rows": [without_samples(row) for row in rows]}, markdown(rows))


if __name__ == "__main__":
    main()
