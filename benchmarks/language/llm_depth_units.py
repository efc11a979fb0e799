"""Attentions and MLPs out of SmolLM2-135M: as many as hold the parameters of 3, 5 and 7 blocks.

    PRUNERECOVER_DATA=... PRUNERECOVER_SMOLLM2=FOLDER python -m benchmarks.language.llm_depth_units

On the texts and with the recovery of `benchmarks.language.llm_depth`, into whose rows and page these go. Resumable.
"""

from __future__ import annotations

import time
from typing import Any

from torch import nn

from benchmarks.data.real import DEVICE, parser
from benchmarks.data.smollm2 import network
from benchmarks.depth.graph_depth_rows import add, measured, pruned, rows_so_far, saved_plan
from benchmarks.depth.graph_depth_text import TEXTS
from benchmarks.language.llm_depth import KEPT, MODEL, ROWS, batches, save
from benchmarks.language.llm_depth_lora import recovered
from benchmarks.language.llm_depth_page import OURS, SEED, STAGES, UNITS
from benchmarks.language.llm_depth_scores import losses
from prunerecover import Plan, plan_depth
from prunerecover.cost.environment import device_name
from prunerecover.language.likelihood import next_token_loss

ENDS = tuple(f"model.layers.{i}.*" for i in (0, 1, 2, 3, 28, 29))  # stay, as with whole blocks
MOST_RANKED = 24  # all but those
RANKED: dict[str, dict[str, Any]] = {
    "Taylor": {"importance": "taylor", "loss": next_token_loss},
    "magnitude": {"importance": "magnitude"},
}


def plan_of(method: str, unit: str, count: int) -> Plan:
    """Return what a method takes out; those that rank leave nothing in the place."""
    remove = {unit: count}
    if method == OURS:
        return saved_plan(f"ours-{unit}-{count}", lambda: plan_depth(network(), remove=remove, batches=batches()), KEPT)
    how = {"search": "one_shot", "replace": "zero", "ignore": ENDS, **RANKED[method]}
    return plan_depth(network(), remove=remove, batches=batches(), **how)


def measure(method: str, unit: str, count: int, stage: str) -> None:
    """Make the rows of one method, unit, number and stage that are missing."""
    about = {"model": MODEL, "method": method, "unit": unit, "removed": count, "stage": stage}
    missing = [text for text in TEXTS if not rows_so_far(ROWS, **about, domain=text, metric="loss")]
    if not missing:
        return
    started = time.perf_counter()
    plan = plan_of(method, unit, count)
    gone = sorted(int(name.split(".")[2]) for name in plan.removed[unit])
    other = pruned(network(), plan)
    about |= {"blocks": gone, "seconds": time.perf_counter() - started, "params_share": share(other)}
    other = recovered(other) if stage == "lora" else other
    for text in missing:
        add(measured(losses(other, text), SEED, **about, device=device_name(DEVICE), metric="loss", domain=text), ROWS)


def share(other: nn.Module) -> float:
    """Return the share of the parameters that is left."""
    left, dense = (sum(p.numel() for p in one.parameters()) for one in (other, network()))
    return left / dense


def main() -> None:
    """Make the rows that are missing, and write the page."""
    methods = (OURS, *RANKED)
    command_line = parser(__doc__)
    command_line.add_argument("--methods", nargs="*", default=methods, choices=methods)
    command_line.add_argument("--units", nargs="*", default=list(UNITS), choices=list(UNITS))
    command_line.add_argument("--stages", nargs="*", default=list(STAGES), choices=list(STAGES))
    options = command_line.parse_args()
    for stage in options.stages:
        for unit in options.units:
            for count in UNITS[unit]:
                for method in options.methods:
                    if method == OURS or count <= MOST_RANKED:
                        measure(method, unit, count, stage)
    save()


if __name__ == "__main__":
    main()
