"""The order of removal on ResNet-56: layers by Taylor score in either order or at random, blocks, and the joint search.

Planned on training images, about 11% of the parameters removed, scored on CIFAR-10's test images: as they are, after
BatchNorm recalibration, and after one short epoch.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
from torch import nn

from benchmarks.data.cifar import EXAMPLE, LEARNING_RATE, batches, cross_entropy, hits, train_one_epoch
from benchmarks.depth.graph_depth_rows import Row, add, difference, measured, pruned, rows_so_far, saved_plan, shares
from benchmarks.width.cifar_models import load
from prunerecover import Budget, Plan, plan_depth, recalibrate_batchnorm
from prunerecover.depth.arguments import DepthConfig
from prunerecover.depth.graph_planner import GraphPlanner
from prunerecover.display.markdown import table
from prunerecover.importance.context import DepthContext
from prunerecover.session.session import Session

MODEL = "ResNet-56"
SHARE, SEEDS = 0.11, (0, 1, 2)
SCORED, RECALIBRATION, EPOCH, OTHER = 256, 1024, 5000, 1000  # images, and what is added to the seed for other images
TESTED = 4000  # of the test images
STAGES = ("prune_only", "bn_recalibrated", "one_epoch")
LAYERS = ("layer",)


@cache
def taylor_scores(seed: int) -> Mapping[str, float]:
    """Return every layer's Taylor score on the dense network."""
    config = DepthConfig(importance="squared_taylor", loss=cross_entropy, search="rounds", seed=seed)
    return GraphPlanner(Session(load(MODEL), batches(SCORED, seed)), LAYERS, config).rank()


def highest_first(context: DepthContext) -> Mapping[str, float]:
    """Return the scores with their sign turned, so that the most important layers go."""
    scores = taylor_scores(context.seed)
    return {unit.name: -scores[unit.name] for unit in context.units}


METHODS: dict[str, dict[str, Any]] = {
    "Taylor ascending": {"kinds": LAYERS, "importance": "squared_taylor", "loss": cross_entropy, "search": "rounds"},
    "Taylor ascending, ranked once": {
        "kinds": LAYERS,
        "importance": "squared_taylor",
        "loss": cross_entropy,
        "search": "one_shot",
    },
    "Taylor descending": {"kinds": LAYERS, "importance": highest_first, "search": "rounds"},
    "Taylor descending, ranked once": {"kinds": LAYERS, "importance": highest_first, "search": "one_shot"},
    "random": {"kinds": LAYERS, "importance": "random", "search": "rounds"},
    "random, ranked once": {"kinds": LAYERS, "importance": "random", "search": "one_shot"},
    "blocks, Taylor": {"kinds": ("block",), "importance": "squared_taylor", "loss": cross_entropy, "search": "rounds"},
    "blocks, joint": {"kinds": ("block",), "search": "joint"},
    "layers, joint": {"kinds": LAYERS, "search": "joint"},
    "joint": {"kinds": (*LAYERS, "block"), "search": "joint"},
}
OURS = "joint"


def run(methods: tuple[str, ...] = ()) -> None:
    """Make the rows that are missing."""
    if not rows_so_far(model=MODEL, method="dense"):
        for row in scored(load(MODEL), "dense", "prune_only", 0, Plan(), 0.0):
            add(row)
    for seed in SEEDS:
        for chosen in (STAGES[:2], STAGES[2:]):  # training takes longest, so it comes last
            for method in methods or tuple(METHODS):
                missing = [s for s in chosen if not rows_so_far(model=MODEL, method=method, seed=seed, stage=s)]
                if missing:
                    make(method, seed, missing)


def wanted() -> list[Row]:
    """Return what each row that this benchmark wants is about."""
    return [{"method": m, "stage": stage, "seed": seed} for seed in SEEDS for stage in STAGES for m in METHODS]


def make(method: str, seed: int, missing: Sequence[str]) -> None:
    """Make the rows of one method and seed."""
    started = time.perf_counter()
    plan = saved_plan(f"resnet56-{method}-{SHARE}-{seed}", partial(planned, method, seed))
    seconds = time.perf_counter() - started
    networks = stages(pruned(load(MODEL), plan), seed)
    for stage in missing:
        for row in scored(networks[stage](), method, stage, seed, plan, seconds):
            add(row)


def planned(method: str, seed: int) -> Plan:
    """Plan with one method."""
    budget = Budget(params=SHARE)
    return plan_depth(load(MODEL), budget, batches=batches(SCORED, seed), seed=seed, **METHODS[method])


def stages(network: nn.Module, seed: int) -> dict[str, Callable[[], nn.Module]]:
    """Return how each stage is made of a pruned network."""

    @cache
    def recalibrated() -> nn.Module:
        copied = copy.deepcopy(network)
        recalibrate_batchnorm(copied, [x for x, _ in batches(RECALIBRATION, seed + OTHER)])
        return copied

    return {
        "prune_only": lambda: network,
        "bn_recalibrated": recalibrated,
        "one_epoch": lambda: train_one_epoch(copy.deepcopy(recalibrated()), EPOCH, seed + OTHER),
    }


def scored(network: nn.Module, method: str, stage: str, seed: int, plan: Plan, seconds: float) -> list[Row]:
    """Return the rows of a network: top-1 on the test images, and on those that are stored without loss."""
    what = {
        "subject": "resnet56",
        "model": MODEL,
        "method": method,
        "unit": ", ".join(METHODS.get(method, {}).get("kinds", ())),
        "budget": SHARE if plan.edits else 0.0,
        **shares(load(MODEL), network, EXAMPLE),
        "stage": stage,
        "seconds": seconds,
        "removed": {kind: list(names) for kind, names in plan.removed.items()},
    }
    sources = {"top1": "cifar10", "top1, lossless": "cifar10_lossless"}
    return [measured(hits(network, source, TESTED), seed, **what, metric=metric) for metric, source in sources.items()]


def section(rows: list[Row]) -> list[str]:
    """Render a table of all stages."""
    dense = {row["metric"]: 100 * row["value"] for row in rows if row["method"] == "dense"}
    lines = [
        f"CIFAR-10, {SHARE:.0%} of the parameters out; planned on {SCORED} training images, BatchNorm recalibrated on "
        f"{RECALIBRATION:,} others, one epoch on {EPOCH:,}. Top-1 in percent on the first {TESTED:,} test JPEGs, "
        "and on the 400 test images that are stored without loss; means over seeds, differences with the paired 95% "
        "interval over images. Scores are in bf16 where the processor multiplies in it. Ranked once: by the score per "
        "parameter; the others take layers by the score itself, and ascending is scored anew after each layer. The "
        f"epoch is at one learning rate for all methods, {LEARNING_RATE:g}: [best rates](best_rates.md) says what was "
        "run at the best of three for each.",
        "",
        f"Dense: {dense['top1']:.1f}, {dense['top1, lossless']:.1f} on the lossless images.",
    ]
    for stage in STAGES:
        there = [row for row in rows if row["stage"] == stage and row["method"] != "dense"]
        methods = [method for method in METHODS if any(row["method"] == method for row in there)]
        cells = [_cells([row for row in there if row["method"] == m], there, dense) for m in methods]
        head = ("method", "seeds", "parameters left", "MACs left", "top-1", "of dense", "lossless", "joint ahead by")
        lines += ["", f"### {stage.replace('_', ' ')}", "", table(head, cells)] if cells else []
    return lines


def _cells(own: list[Row], there: list[Row], dense: dict[str, float]) -> tuple[str, ...]:
    top1, lossless = ([row for row in own if row["metric"] == metric] for metric in dense)
    ours = [row for row in there if row["method"] == OURS and row["metric"] == "top1"]
    mean = 100 * float(np.mean([row["value"] for row in top1]))
    return (
        own[0]["method"],
        str(len(top1)),
        f"{np.mean([row['params_share'] for row in top1]):.1%}",
        f"{np.mean([row['macs_share'] for row in top1]):.1%}",
        f"{mean:.1f} ({', '.join(format(100 * row['value'], '.1f') for row in top1)})",
        f"{mean / dense['top1']:.2f}",
        f"{100 * np.mean([row['value'] for row in lossless]):.1f}",
        "" if own[0]["method"] == OURS else difference(ours, top1, scale=100, digits=1),
    )
