"""Blocks that learn dense hidden states, one after the other, beside adapters on the next token.

    PRUNERECOVER_DATA=... python -m benchmarks.recovery.block_recovery

stories260K without a block of five. A quarter of an hour on a core.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.data.language_models import STORIES, stories260k
from benchmarks.data.real import DEVICE
from benchmarks.data.text import TEXTS, calibration
from benchmarks.language.llm_depth_lora import BATCH, LENGTH, RANK, STEPS, recovered
from benchmarks.language.llm_depth_scores import window_losses
from benchmarks.runner.benchmark import Axis, Benchmark
from benchmarks.runner.page import Table, ahead, figure, text
from benchmarks.runner.plans import pruned
from benchmarks.runner.rows import Figure
from prunerecover import Plan, reconstruct_blocks
from prunerecover.cost.memory import LiveStorages
from prunerecover.surgery.merging import block_removals
from prunerecover.surgery.provenance import plan_for

SEED, FEW = 0, STEPS // 4
BLOCKS, SAMPLES, SCORED = (2,), 256, 100  # removed blocks, texts of the blocks, and held-out texts
RATE = 1e-2  # of the adapters, picked in the benchmark of shared adapters
DENSE, BASE = "dense", "untrained"
METHODS = {  # whether blocks learn, and the steps of the adapters afterwards
    BASE: (False, 0),
    "blocks": (True, 0),
    f"adapters, {FEW} steps": (False, FEW),
    f"blocks, then adapters, {FEW} steps": (True, FEW),
    f"adapters, {STEPS} steps": (False, STEPS),
}


@cache
def opened() -> tuple[nn.Module, Any]:
    """Return the dense network and its tokenizer."""
    network, tokenizer = stories260k()
    return network.to(DEVICE), tokenizer


@cache
def texts() -> Tensor:
    """Return the texts of all recoveries, `(STEPS * BATCH, LENGTH)`."""
    return calibration(opened()[1], ("tinystories", "train.jsonl"), STEPS * BATCH, LENGTH, SEED)


def plan() -> Plan:
    """Return the plan, without replacements."""
    dense = opened()[0]
    return plan_for(dense, block_removals(dense, BLOCKS), method="by hand")


def by_blocks(other: nn.Module) -> nn.Module:
    """Return a network after its blocks have learnt the dense hidden states, in place."""
    batches = [{"input_ids": some.to(DEVICE)} for some in torch.split(texts()[:SAMPLES], BATCH)]
    reconstruct_blocks(other, opened()[0], plan(), batches)
    return other


def watched(recover: Callable[[], nn.Module], *networks: nn.Module) -> tuple[nn.Module, float, float]:
    """Return the recovered network, the seconds, and the peak of all tensors beyond the weights of networks."""
    weights = [tensor for network in networks for tensor in (*network.parameters(), *network.buffers())]
    started = time.perf_counter()
    with LiveStorages(weights) as live:
        found = recover()
    return found, time.perf_counter() - started, float(live.peak)


def measure(model: str, method: str) -> dict[str, Any]:
    """Recover and score a network."""
    dense = opened()[0]
    if method == DENSE:
        return scores(dense)
    other, seconds, peaks = pruned(dense, plan()), 0.0, [0.0]
    learn, steps = METHODS[method]
    if learn:
        other, took, peak = watched(partial(by_blocks, other), dense, other)
        seconds, peaks = took, [peak]
    if steps:
        train = partial(recovered, other, RATE, steps, texts())
        copy = sum(parameter.nbytes for parameter in other.parameters())  # trained in the place of the network
        other, took, peak = watched(train, dense, other)
        seconds, peaks = seconds + took, [*peaks, peak - copy]
    return {"seconds": seconds, "memory": max(peaks) / 1e6} | scores(other)


def scores(network: nn.Module) -> dict[str, Figure]:
    """Return the loss of each held-out text."""
    held_out = calibration(opened()[1], TEXTS["tinystories"], SCORED, LENGTH, SEED)
    return {"loss": Figure.of(window_losses(network, held_out), SEED)}


BENCHMARK = Benchmark(
    name="block_recovery",
    doc=__doc__,
    title="Blocks that learn dense hidden states",
    text=f"""Block number 2 of the five of stories260K is removed without a replacement. "blocks": `reconstruct_blocks`
    with its defaults, in single precision, on {SAMPLES} texts of {LENGTH} tokens. "adapters": steps of adapters of rank
    {RANK} and the final norm on the next tokens, {BATCH} texts each, in bf16 where the processor has it; the blocks
    read the first of the same texts. Loss in nats per token on {SCORED} held-out texts, lower better; one seed.
    Differences are paired, below zero where this loses less. Memory: peak of all tensors beyond the weights of the
    dense and the pruned network.""",
    measure=measure,
    axes={"model": Axis((STORIES,)), "method": Axis(tuple(METHODS))},
    references=[{"model": STORIES, "method": DENSE}],
    tables=(
        Table(
            [
                text("method"),
                figure("loss", "loss", 3),
                ahead("loss", f"minus {BASE}", 3, turned=True, method=BASE),
                ahead("loss", f"minus {STEPS} steps of adapters", 3, turned=True, method=f"adapters, {STEPS} steps"),
                text("seconds", form="{:.0f}"),
                text("memory", "memory, MB", "{:.1f}"),
            ],
            title="{model}",
            by=("model",),
        ),
    ),
)
main = BENCHMARK.main

if __name__ == "__main__":
    main()
