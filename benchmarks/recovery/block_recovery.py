"""Blocks that learn dense hidden states, one after the other, beside adapters on the next token.

    PRUNERECOVER_DATA=... python -m benchmarks.recovery.block_recovery
    PRUNERECOVER_SMOLLM2=FOLDER python -m benchmarks.recovery.block_recovery --models SmolLM2-135M

stories260K without a block of five, and SmolLM2-135M without the five of 30 blocks of `llm_depth`; see there for the
weights. The latter takes half an hour on a core.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.data import smollm2
from benchmarks.data.language_models import STORIES, stories260k, without_blocks
from benchmarks.data.real import DEVICE
from benchmarks.data.text import TEXTS, calibration
from benchmarks.language.llm_depth_lora import BATCH, LEARNING_RATE, LENGTH, RANK, STEPS, drawn_sequences, recovered
from benchmarks.language.llm_depth_scores import window_losses, windows
from benchmarks.runner.benchmark import Axis, Benchmark
from benchmarks.runner.page import Table, ahead, figure, text
from benchmarks.runner.plans import pruned
from benchmarks.runner.rows import Figure
from prunerecover import Plan, reconstruct_blocks
from prunerecover.cost.memory import LiveStorages

LLM, SEED, FEW = "SmolLM2-135M", 0, STEPS // 4
BLOCKS = {STORIES: (2,), LLM: tuple(range(14, 19))}  # removed
SAMPLES = {STORIES: 256, LLM: 64}  # texts of the blocks
RATES = {STORIES: 1e-2, LLM: LEARNING_RATE}  # of the adapters, picked in the benchmarks of adapters
SCORED = {STORIES: 100, LLM: 24}  # held-out texts, of each source
DENSE, BASE = "dense", "untrained"
METHODS = {  # whether blocks learn, and the steps of the adapters afterwards
    BASE: (False, 0),
    "blocks": (True, 0),
    f"adapters, {FEW} steps": (False, FEW),
    f"blocks, then adapters, {FEW} steps": (True, FEW),
    f"adapters, {STEPS} steps": (False, STEPS),
}


@cache
def opened(model: str) -> tuple[nn.Module, Any]:
    """Return a dense network and its tokenizer."""
    network, tokenizer = stories260k() if model == STORIES else smollm2.opened()
    return network.to(DEVICE), tokenizer


@cache
def texts(model: str) -> Tensor:
    """Return the texts of all recoveries, `(STEPS * BATCH, LENGTH)`."""
    if model == LLM:
        return drawn_sequences(STEPS * BATCH)
    return calibration(opened(model)[1], ("tinystories", "train.jsonl"), STEPS * BATCH, LENGTH, SEED)


@cache
def held_out(model: str) -> Tensor:
    """Return the texts that networks are scored on."""
    count = SCORED[model]
    if model == LLM:
        return torch.cat([windows(name)[:: len(windows(name)) // count][:count] for name in TEXTS])
    return calibration(opened(model)[1], TEXTS["tinystories"], count, LENGTH, SEED)


@cache
def plan(model: str) -> Plan:
    """Return the plan, without replacements."""
    return without_blocks(opened(model)[0], BLOCKS[model])


def by_blocks(model: str, other: nn.Module) -> nn.Module:
    """Return a network after its blocks have learnt the dense hidden states, in place."""
    batches = [{"input_ids": some.to(DEVICE)} for some in torch.split(texts(model)[: SAMPLES[model]], BATCH)]
    reconstruct_blocks(other, opened(model)[0], plan(model), batches)
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
    dense = opened(model)[0]
    if method == DENSE:
        return scores(model, dense)
    other, seconds, peaks = pruned(dense, plan(model)), 0.0, [0.0]
    learn, steps = METHODS[method]
    if learn:
        other, took, peak = watched(partial(by_blocks, model, other), dense, other)
        seconds, peaks = took, [peak]
    if steps:
        train = partial(recovered, other, RATES[model], steps, texts(model))
        copy = sum(parameter.nbytes for parameter in other.parameters())  # trained in the place of the network
        other, took, peak = watched(train, dense, other)
        seconds, peaks = seconds + took, [*peaks, peak - copy]
    return {"seconds": seconds, "memory": max(peaks) / 1e6} | scores(model, other)


def scores(model: str, other: nn.Module) -> dict[str, Figure]:
    """Return the loss of each held-out text."""
    return {"loss": Figure.of(window_losses(other, held_out(model)), SEED)}


BENCHMARK = Benchmark(
    title="Blocks that learn dense hidden states",
    text=f"""Blocks are removed without replacements: number 2 of the five of stories260K, numbers 14 to 18 of the 30 of
    SmolLM2-135M. "blocks": `reconstruct_blocks` with its defaults, in single precision, on {SAMPLES[STORIES]} and
    {SAMPLES[LLM]} texts of {LENGTH} tokens. "adapters": steps of adapters of rank {RANK} and the final norm on the next
    tokens, {BATCH} texts each, in bf16 where the processor has it; the blocks read the first of the same texts. Loss in
    nats per token on {SCORED[STORIES]} held-out texts, or {SCORED[LLM]} of either source, lower better; one seed.
    Differences are paired, below zero where this loses less. Memory: peak of all tensors beyond the weights of the
    dense and the pruned network. What is missing was not measured.""",
    measure=measure,
    axes={"model": Axis((STORIES, LLM), default=(STORIES,)), "method": Axis(tuple(METHODS))},
    references=[{"model": model, "method": DENSE} for model in (STORIES, LLM)],
    complete=False,
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

if __name__ == "__main__":
    BENCHMARK.main()
