"""SmolLM2-135M with layers removed: two to one by angular distance, whole blocks, the joint search, the default.

Without training, and after the recovery of `llm_depth_lora`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from benchmarks.data.real import DEVICE
from benchmarks.data.smollm2 import network, tokenizer
from benchmarks.data.text import CHOICES, TEXTS, calibration, losses, right
from benchmarks.language.llm_depth_lora import STEPS, recovered
from benchmarks.runner.page import Table, ahead, figure, text
from benchmarks.runner.plans import pruned, removed, saved_plan, shares
from benchmarks.runner.rows import CHECKPOINTS, Figure, Row
from prunerecover import Budget, Plan, plan_depth
from prunerecover.language.likelihood import next_token_loss

SHARES, SAMPLES, LENGTH, SEED = (0.1, 0.2, 0.3), 8, 128, 0
FITTED = 32  # texts of the default, which fits what is left, too
FINE, BLOCK = ("attention", "layer"), {"kinds": ("block",), "search": "one_shot"}
OURS, DEFAULT, STAGES = "joint", "default", ("prune_only", "lora")
METHODS: dict[str, dict[str, Any]] = {
    "blocks, angular distance": {**BLOCK, "importance": "angular_distance"},
    "blocks, perplexity": {**BLOCK, "importance": "cross_entropy", "loss": next_token_loss},
    "blocks, divergence": BLOCK,
    "two to one, angular distance": {"kinds": FINE, "importance": "block_output_angle", "search": "two_to_one"},
    OURS: {"kinds": (*FINE, "block"), "search": "joint"},
    DEFAULT: {},  # `plan_depth` with nothing but a budget
}
NAMES = [{"budget": 0.0, "stage": STAGES[0], "method": "dense"}] + [
    {"budget": share, "stage": stage, "method": method} for stage in STAGES for share in SHARES for method in METHODS
]


def planned(method: str, share: float) -> Plan:
    """Plan a budget."""
    texts = FITTED if method == DEFAULT else SAMPLES
    ids = calibration(tokenizer(), ("wikitext2", "valid.txt"), texts, LENGTH, SEED).to(DEVICE)
    batches = [{"input_ids": some} for some in ids.split(4 if method == DEFAULT else SAMPLES)]
    return plan_depth(network(), Budget(params=share), batches=batches, **METHODS[method])


def measure(budget: float, stage: str, method: str) -> dict[str, Any]:
    """Plan, prune, recover if asked, and score on both texts and on questions."""
    started, plan = time.perf_counter(), Plan()
    if method != "dense":
        name = f"smollm2-{budget}" if method == DEFAULT else f"smollm2-{method}-{budget}"
        plan = saved_plan(name, partial(planned, method, budget), CHECKPOINTS / "graph_depth")
    seconds = time.perf_counter() - started
    other = pruned(network(), plan)
    left = shares(network(), other, {"input_ids": torch.zeros(1, LENGTH, dtype=torch.long, device=DEVICE)})
    other = recovered(other) if stage == "lora" else other
    figures = {f"loss, {name}": Figure.of(losses(other, tokenizer(), name), SEED) for name in TEXTS}
    figures |= {name: Figure.of(right(other, tokenizer(), name), SEED) for name in CHOICES}
    return {**figures, **left, "seconds": seconds, "removed": removed(plan)}


def about(rows: Sequence[Row]) -> str:
    """Return the lines above the first table."""
    if (rows[0].budget, rows[0]["stage"]) != (SHARES[0], STAGES[0]):
        return ""
    return (
        f"Planned on {SAMPLES} texts of {LENGTH} tokens of wikitext2's validation split; the default, `plan_depth` "
        f"with nothing but a budget, on {FITTED}, since it fits what is left. Loss in nats per token on the first "
        "tokens of held-out documents, and the share of questions answered right; ahead: the joint search's minus "
        f"theirs on the same documents (below zero: it loses less). Lora: after {STEPS} steps of the adapters of "
        "[blocks out of SmolLM2](llm_depth.md), on other texts of both kinds."
    )


LOSSES = tuple(f"loss, {name}" for name in TEXTS)
SCORES = [figure(name, name, 3) for name in (*LOSSES, *CHOICES)]
TABLES = [
    Table(
        [text("method", "SmolLM2-135M"), *SCORES],
        where=lambda row: row["subject"] == "smollm2" and row.method == "dense",
    ),
    Table(
        [
            text("method"),
            text("params_share", "parameters left", "{:.1%}"),
            text("macs_share", "MACs left", "{:.1%}"),
            *SCORES,
            *(ahead(name, f"ours ahead, {name}", 3, method=OURS) for name in LOSSES),
        ],
        title="SmolLM2-135M, {budget:.0%} of the parameters removed, {stage}",
        by=("subject", "budget", "stage"),
        where=lambda row: row["subject"] == "smollm2" and row.budget > 0,
        text=about,
    ),
]
