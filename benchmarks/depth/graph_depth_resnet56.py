"""The order of removal on ResNet-56: layers by Taylor score in either order or at random, blocks, and the joint search.

Plans on training images remove about 11% of the parameters; scores are on CIFAR-10's test images, before and after
BatchNorm recalibration, and after a short epoch.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache, partial
from typing import Any

from torch import nn

from benchmarks.data.cifar import EXAMPLE, LEARNING_RATE, batches, cross_entropy, hits, train_one_epoch
from benchmarks.runner.page import Table, ahead, figure, mean, seeds, text
from benchmarks.runner.plans import pruned, removed, saved_plan, shares
from benchmarks.runner.rows import CHECKPOINTS, Figure, Row
from benchmarks.width.cifar_models import load
from prunerecover import Budget, Plan, plan_depth, recalibrate_batchnorm
from prunerecover.depth.arguments import DepthConfig
from prunerecover.depth.graph_planner import GraphPlanner
from prunerecover.importance.context import DepthContext
from prunerecover.session.session import Session

MODEL, SHARE = "ResNet-56", 0.11
SCORED, RECALIBRATION, EPOCH, OTHER = 256, 1024, 5000, 1000  # images, and what is added to the seed for other images
TESTED = 4000  # of the test images
STAGES = ("prune_only", "bn_recalibrated", "one_epoch")
LAYERS = ("layer",)
TAYLOR: dict[str, Any] = {"importance": "squared_taylor", "loss": cross_entropy}


@cache
def taylor_scores(seed: int) -> Mapping[str, float]:
    """Return every layer's Taylor score on the dense network."""
    config = DepthConfig(**TAYLOR, search="rounds", seed=seed)
    return GraphPlanner(Session(load(MODEL), batches(SCORED, seed)), LAYERS, config).rank()


def highest_first(context: DepthContext) -> Mapping[str, float]:
    """Return the scores with reversed sign, for the removal of the most important layers."""
    scores = taylor_scores(context.seed)
    return {unit.name: -scores[unit.name] for unit in context.units}


OURS = "joint"
METHODS: dict[str, dict[str, Any]] = {
    "Taylor ascending": {"kinds": LAYERS, **TAYLOR, "search": "rounds"},
    "Taylor ascending, ranked once": {"kinds": LAYERS, **TAYLOR, "search": "one_shot"},
    "Taylor descending": {"kinds": LAYERS, "importance": highest_first, "search": "rounds"},
    "Taylor descending, ranked once": {"kinds": LAYERS, "importance": highest_first, "search": "one_shot"},
    "random": {"kinds": LAYERS, "importance": "random", "search": "rounds"},
    "random, ranked once": {"kinds": LAYERS, "importance": "random", "search": "one_shot"},
    "blocks, Taylor": {"kinds": ("block",), **TAYLOR, "search": "rounds"},
    "blocks, joint": {"kinds": ("block",), "search": "joint"},
    "layers, joint": {"kinds": LAYERS, "search": "joint"},
    OURS: {"kinds": (*LAYERS, "block"), "search": "joint"},
}
NAMES = [{"seed": 0, "stage": STAGES[0], "method": "dense"}] + [
    {"seed": seed, "stage": stage, "method": method}
    for seed in (0, 1, 2)
    for stages in (STAGES[:2], STAGES[2:])  # training takes longest, so it comes last
    for method in METHODS
    for stage in stages
]


def planned(method: str, seed: int) -> Plan:
    """Plan with a method."""
    how = METHODS[method]
    return plan_depth(load(MODEL), Budget(params=SHARE), batches=batches(SCORED, seed), seed=seed, **how)


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


@lru_cache(maxsize=1)
def made(method: str, seed: int) -> tuple[Plan, float, dict[str, Callable[[], nn.Module]]]:
    """Return the plan of a method, its seconds, and the stages of the pruned network."""
    started, plan = time.perf_counter(), Plan()
    if method != "dense":
        name = f"resnet56-{method}-{SHARE}-{seed}"
        plan = saved_plan(name, partial(planned, method, seed), CHECKPOINTS / "graph_depth")
    return plan, time.perf_counter() - started, stages(pruned(load(MODEL), plan), seed)


def measure(seed: int, stage: str, method: str) -> dict[str, Any]:
    """Score a method's network on the test images, as JPEGs and without loss."""
    plan, seconds, of_stage = made(method, seed)
    network = of_stage[stage]()
    figures = {
        "top1": Figure.of(hits(network, "cifar10", TESTED), seed),
        "lossless": Figure.of(hits(network, "cifar10_lossless", TESTED), seed),
    }
    return {**figures, **shares(load(MODEL), network, EXAMPLE), "seconds": seconds, "removed": removed(plan)}


def about(rows: Sequence[Row]) -> str:
    """Return the lines above the first table."""
    if rows[0]["stage"] != STAGES[0]:
        return ""
    return (
        f"CIFAR-10, {SHARE:.0%} of the parameters out; planned on {SCORED} training images, BatchNorm recalibrated "
        f"on {RECALIBRATION:,} others, one epoch on {EPOCH:,}. Top-1 in percent on the first {TESTED:,} test JPEGs, "
        "and on the 400 test images that are stored without loss. Ranked once: by the score per parameter; the "
        "others take layers by the score itself, and ascending is scored anew after each layer. The epoch is at one "
        f"learning rate for all methods, {LEARNING_RATE:g}: [best rates](best_rates.md) says what was run at the "
        "best of three for each."
    )


TABLES = [
    Table(
        [
            text("method"),
            seeds(),
            mean("params_share", "parameters left"),
            mean("macs_share", "MACs left"),
            figure("top1", "top-1", 1, 100, ends=False),
            figure("lossless", "lossless", 1, 100, ends=False),
            ahead("top1", "joint ahead by", 1, 100, method=OURS),
        ],
        title="The order of removal, ResNet-56: {stage}",
        by=("subject", "stage"),
        where=lambda row: row["subject"] == "resnet56",
        text=about,
    )
]
