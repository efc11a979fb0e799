"""More kinds of units on DeiT-Tiny: layers, blocks, attentions and activations at equal MACs, against today's default.

Plans use training images of tiny_imagenet; scores use validation images of its 200 classes, without training and, for
one seed, after the same short recovery.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import torch

from benchmarks.data.real import deit_tiny
from benchmarks.data.tiny_imagenet import calibration, hits, recover, validation
from benchmarks.runner.page import Table, ahead, counts, figure, seeds, text
from benchmarks.runner.plans import pruned, removed, saved_plan, shares
from benchmarks.runner.rows import CHECKPOINTS, Figure, Row
from prunerecover import Budget, Plan, plan_depth

SHARES, SAMPLES, SEEDS = (0.2, 0.33), 96, (0, 1, 2)
TESTED = 40  # batches of 50 images
STAGES, RECOVERED_ON = ("prune_only", "recovered"), 1000  # images of the recovery's only epoch
COUNTS: Mapping[float, dict[str, int]] = {
    0.2: {"attention": 3, "activation": 3},
    0.33: {"attention": 3, "activation": 6},
}
OURS, BY_COUNT = "default", "attentions and activations"
METHODS: dict[str, dict[str, Any]] = {
    OURS: {},
    "joint": {"search": "joint"},
    "ranked once": {"search": "one_shot"},
    BY_COUNT: {},
    "blocks": {"kinds": ("block",)},
    "layers, joint": {"kinds": ("layer",), "search": "joint"},
    "attentions, MLPs and blocks, joint": {"kinds": ("attention", "mlp", "block"), "search": "joint"},
    "layers, attentions and blocks, joint": {"kinds": ("layer", "attention", "block"), "search": "joint"},
}
OF_ONE_SEED = ("ranked once", "layers, joint", "layers, attentions and blocks, joint")  # far behind
NAMES = [{"budget": 0.0, "stage": STAGES[0], "seed": 0, "method": "dense"}] + [
    {"budget": share, "stage": stage, "seed": seed, "method": method}
    for stage in STAGES
    for seed in SEEDS
    for method in METHODS
    for share in SHARES
    if seed == SEEDS[0] or (method not in OF_ONE_SEED and stage == STAGES[0])
]


def planned(method: str, share: float, seed: int) -> Plan:
    """Plan a budget on the calibration images of a seed."""
    every = torch.cat([images for images, _ in calibration(SAMPLES * len(SEEDS))]).split(SAMPLES)
    budget = Budget(remove=COUNTS[share]) if method == BY_COUNT else Budget(macs=share)
    return plan_depth(deit_tiny(), budget, batches=every[SEEDS.index(seed)].split(32), seed=seed, **METHODS[method])


def measure(budget: float, stage: str, seed: int, method: str) -> dict[str, Any]:
    """Plan, prune, recover if asked, and score."""
    started, plan = time.perf_counter(), Plan()
    if method != "dense":
        name = f"deit-{method}-{budget}-{seed}"
        plan = saved_plan(name, partial(planned, method, budget, seed), CHECKPOINTS / "graph_depth")
    seconds, dense = time.perf_counter() - started, deit_tiny()
    other = pruned(dense, plan)
    other = recover(other, RECOVERED_ON, seed) if stage == "recovered" else other
    found = Figure.of(hits(other, list(islice(validation(), TESTED))), seed)
    left = shares(dense, other, torch.zeros(1, 3, 224, 224))
    return {"top1": found, **left, "seconds": seconds, "removed": removed(plan)}


def about(rows: Sequence[Row]) -> str:
    """Return the lines above the first table."""
    if (rows[0].budget, rows[0]["stage"]) != (SHARES[0], STAGES[0]):
        return ""
    return (
        f"Planned on {SAMPLES} training images of tiny_imagenet, others for each seed; top-1 in percent on 2,000 "
        "validation images of its 200 classes, which nothing here was tuned on. Default is `plan_depth` with "
        "nothing but a budget, and fits what is left; layers leave identities. Units, shares and seconds are those "
        f"of the first seed. Recovered: one epoch of {RECOVERED_ON:,} training images with distillation from the "
        "dense network, which also adapts to the 200 classes."
    )


def is_dense(row: Row) -> bool:
    """Whether a row is of the dense network."""
    return bool(row["subject"] == "deit_tiny" and row.method == "dense")


TABLES = [
    Table([text("method", "DeiT-Tiny"), figure("top1", "top-1", 1, 100)], title="More kinds of units", where=is_dense),
    Table(
        [
            text("method"),
            counts("removed", "removed"),
            text("macs_share", "MACs left", "{:.1%}"),
            text("params_share", "parameters left", "{:.1%}"),
            seeds(),
            figure("top1", "top-1", 1, 100, ends=False),
            ahead("top1", "default ahead by", 1, 100, method=OURS),
            text("seconds", "planning, s", "{:.0f}"),
        ],
        title="DeiT-Tiny, {budget:.0%} of the MACs removed, {stage}",
        by=("subject", "budget", "stage"),
        where=lambda row: row["subject"] == "deit_tiny" and row.budget > 0,
        text=about,
    ),
]
