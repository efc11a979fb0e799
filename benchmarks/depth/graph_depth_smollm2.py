"""SmolLM2-135M without some of its layers: two to one by angular distance, whole blocks, the joint search, the default.

Without training, and after the recovery of `llm_depth_lora`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.data.real import DEVICE
from benchmarks.data.smollm2 import network, tokenizer
from benchmarks.data.text import CHOICES, TEXTS, calibration, losses, right
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
from benchmarks.language.llm_depth_lora import STEPS, recovered
from prunerecover import Budget, Plan
from prunerecover.depth.arguments import DepthConfig
from prunerecover.depth.layers.removals import Removals
from prunerecover.depth.plan_depth import planner_for
from prunerecover.display.markdown import table
from prunerecover.graph.trace import trace
from prunerecover.importance.context import DepthContext
from prunerecover.model.batches import ModelInputs
from prunerecover.model.copies import share_copy
from prunerecover.session.session import Session
from prunerecover.surgery.apply_edits import apply_edits

MODEL = "SmolLM2-135M"
SHARES, SAMPLES, LENGTH, SEED = (0.1, 0.2, 0.3), 8, 128, 0
FITTED = 32  # texts of the default, which fits what is left, too
PLANNED_ON = ("wikitext2", "valid.txt")
FINE = ("attention", "layer")


def perplexity(context: DepthContext) -> Mapping[str, float]:
    """Return the loss per token without each unit."""
    ids = torch.cat([batch["input_ids"] for batch in context.batches])
    traced = trace(context.model, ModelInputs(kwargs={"input_ids": ids[:1]}))
    removals = Removals(context.model, traced, ("block",))
    found = {}
    for unit in context.units:
        network = share_copy(context.model)
        apply_edits(network, removals.edits([unit], in_place=True))
        with torch.inference_mode():
            logits = network(input_ids=ids).logits[:, :-1]
        found[unit.name] = float(F.cross_entropy(logits.transpose(1, 2), ids[:, 1:]))
    return found


METHODS: dict[str, dict[str, Any]] = {
    "blocks, angular distance": {"kinds": ("block",), "importance": "angular_distance", "search": "one_shot"},
    "blocks, perplexity": {"kinds": ("block",), "importance": perplexity, "search": "one_shot"},
    "blocks, divergence": {"kinds": ("block",), "search": "one_shot"},
    "two to one, angular distance": {"kinds": FINE, "importance": "block_output_angle", "search": "two_to_one"},
    "joint": {"kinds": (*FINE, "block"), "search": "joint"},
    "default": {},  # `plan_depth` with nothing but a budget
}
OURS, DEFAULT = "joint", "default"


STAGES = ("prune_only", "lora")


def run(methods: tuple[str, ...] = (), budgets: tuple[float, ...] = SHARES) -> None:
    """Make the rows that are missing."""
    if not rows_so_far(model=MODEL, method="dense"):
        for row in scored(network(), "dense", 0.0, Plan(), 0.0, STAGES[0]):
            add(row)
    for stage in STAGES:
        for share in budgets:
            for method in methods or tuple(METHODS):
                if not rows_so_far(model=MODEL, method=method, budget=share, stage=stage):
                    make(method, share, stage)


def make(method: str, share: float, stage: str) -> None:
    """Make the rows of one method, budget and stage."""
    started = time.perf_counter()
    plan = plan_of(method, share)
    seconds = time.perf_counter() - started
    other = pruned(network(), plan)
    for row in scored(recovered(other) if stage == "lora" else other, method, share, plan, seconds, stage):
        add(row)


def plan_of(method: str, share: float) -> Plan:
    """Return the plan of the rows without training if there are such rows, or make it."""
    if method == DEFAULT:
        return saved_plan(f"smollm2-{share}", lambda: default_planner().plan(Budget(params=share)))
    rows = rows_so_far(model=MODEL, method=method, budget=share, stage="prune_only")
    if not rows:
        return planned(method, share)
    example = ModelInputs(kwargs={"input_ids": calibration(tokenizer(), PLANNED_ON, 1, LENGTH, SEED)})
    return planned_before(network(), example, METHODS[method]["kinds"], rows[0])


def wanted() -> list[Row]:
    """Return what each row that this benchmark wants is about."""
    return [{"method": m, "budget": share, "stage": stage} for stage in STAGES for m in METHODS for share in SHARES]


def planned(method: str, share: float) -> Plan:
    """Plan one budget; what is known from earlier budgets and methods of the same kinds and scores is used again."""
    settings = dict(METHODS[method])
    planner = planner_of(settings["kinds"], settings.get("importance", "output_divergence"))
    planner.config = replace(planner.config, search=settings["search"])
    plan: Plan = planner.plan(Budget(params=share))
    return plan


@cache
def planner_of(kinds: tuple[str, ...], importance: Any) -> Any:
    """Return what plans all budgets."""
    ids = calibration(tokenizer(), PLANNED_ON, SAMPLES, LENGTH, SEED).to(DEVICE)
    search = "joint" if "layer" in kinds else "one_shot"
    config = DepthConfig(
        kinds=kinds, importance=importance, search=search if importance == "output_divergence" else None
    )
    return planner_for(Session(network(), [{"input_ids": ids}]), Budget(params=SHARES[0]), config)


@cache
def default_planner() -> Any:
    """Return what `plan_depth` plans with if it is given nothing but a budget."""
    ids = calibration(tokenizer(), PLANNED_ON, FITTED, LENGTH, SEED).to(DEVICE)
    return planner_for(
        Session(network(), [{"input_ids": some} for some in ids.split(4)]), Budget(params=SHARES[0]), DepthConfig()
    )


def scored(other: nn.Module, method: str, share: float, plan: Plan, seconds: float, stage: str) -> list[Row]:
    """Return a row per text and set of questions."""
    left = shares(network(), other, {"input_ids": torch.zeros(1, LENGTH, dtype=torch.long, device=DEVICE)})
    what = {
        "subject": "smollm2",
        "model": MODEL,
        "method": method,
        "unit": ", ".join(METHODS.get(method, {}).get("kinds", plan.removed)),
        "budget": share,
        **left,
        "stage": stage,
        "seconds": seconds,
        "removed": {kind: list(names) for kind, names in plan.removed.items()},
    }
    rows = [measured(losses(other, tokenizer(), text), SEED, **what, metric=f"loss, {text}") for text in TEXTS]
    return rows + [measured(right(other, tokenizer(), name), SEED, **what, metric=name) for name in CHOICES]


def section(rows: list[Row]) -> list[str]:
    """Render a table per share and stage."""
    metrics = [f"loss, {text}" for text in TEXTS] + list(CHOICES)
    lines = [
        f"Planned on {SAMPLES} texts of {LENGTH} tokens of wikitext2's validation split; the default, `plan_depth` "
        f"with nothing but a budget, on {FITTED}, since it fits what is left. Loss in nats per token on "
        "the first tokens of held-out documents, and the share of questions answered right; ahead: ours minus theirs "
        "on the same documents, with the paired 95% interval (below zero: ours loses less). Recovered: by the "
        f"adapters of [blocks out of SmolLM2](llm_depth.md), {STEPS} steps on other texts of both kinds.",
    ]
    dense = {row["metric"]: row for row in rows if row["method"] == "dense"}
    lines += ["", "Dense: " + ", ".join(f"{name} {row['value']:.3f}" for name, row in dense.items()) + "."]
    for share in SHARES:
        for stage, title in zip(STAGES, ("without training", "recovered"), strict=True):
            there = [r for r in rows if r.get("budget") == share and r["stage"] == stage and r["method"] != "dense"]
            cells = [_cells(method, there, metrics) for method in METHODS if any(r["method"] == method for r in there)]
            head = (
                "method",
                "parameters left",
                "MACs left",
                *metrics,
                *(f"ours ahead, {name}" for name in metrics[:2]),
            )
            title = f"### {share:.0%} of the parameters removed, {title}"
            lines += ["", title, "", table(head, cells)] if cells else []
    return lines


def _cells(method: str, there: list[Row], metrics: Sequence[str]) -> tuple[str, ...]:
    own = {row["metric"]: row for row in there if row["method"] == method}
    ours = {row["metric"]: row for row in there if row["method"] == OURS}
    first = next(iter(own.values()))
    scores = (_cell(own[metric]) for metric in metrics)
    compared = metrics[:2] if ours and method != OURS else ()
    ahead = [difference([ours[metric]], [own[metric]]) for metric in compared] or ["", ""]
    return (method, f"{first['params_share']:.1%}", f"{first['macs_share']:.1%}", *scores, *ahead)


def _cell(row: Row) -> str:
    return f"{row['value']:.3f} ({row['ci_low']:.3f} to {row['ci_high']:.3f})"
