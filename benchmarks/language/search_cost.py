"""What a search for blocks costs beside the naive loop, which tries every block that is left in the whole network.

    python -m benchmarks.language.search_cost

Seven of 32 blocks of a Llama with random weights go, with nothing in their place. The naive loop runs whole networks,
batch by batch; our searches run before and after it, and must find the same set if they are exact. Block calls that
compute something are counted, and time is that of one thread on its processor. About 5 minutes a seed on a core.
Resumable: a seed whose rows are there is passed over.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from benchmarks.runner.benchmark import Axis, Benchmark
from benchmarks.runner.page import Table, text
from benchmarks.runner.rows import Row
from prunerecover import plan_depth
from prunerecover.divergence.measure import mean_divergence
from prunerecover.families.describe import describe
from prunerecover.model.batches import as_inputs, call, split_batches
from prunerecover.model.copies import share_copy
from prunerecover.surgery.apply_edits import apply_edits
from prunerecover.surgery.merging import block_removals

HIDDEN, BLOCKS, GONE, SEEDS = 256, 32, 7, 3
BATCHES, SAMPLES, TOKENS, VOCABULARY = 8, 4, 48, 1000
SCALE = 3  # of random matrices: else blocks hardly change anything
NAIVE, EXACT = "naive loop", "prunerecover, exact"
SEARCHES = {  # arguments of `plan_depth`, by name
    "prunerecover, exact": {"search": "exact", "replace": "zero"},
    "prunerecover, greedy": {"search": "greedy", "replace": "zero"},
    "prunerecover, exact, with maps fitted": {"search": "exact"},
    "prunerecover": {},
}


def measure(seed: int) -> Iterator[dict[str, Any]]:
    """Search by the naive loop, and by ours before and after it."""
    model, batches = _llama(seed), _batches(seed)
    before = {name: _timed(_ours, model, batches, how) for name, how in SEARCHES.items()}
    naive = _timed(_naive, model, batches, {})
    found = {NAIVE: [naive], **{name: [before[name], _timed(_ours, model, batches, SEARCHES[name])] for name in before}}
    for name, runs in found.items():
        seconds = float(np.mean([run["seconds"] for run in runs]))
        yield {
            "method": name,
            "removed": runs[0]["order"],
            "same_set": "yes" if set(runs[0]["order"]) == set(naive["order"]) else "no",
            "block_calls": runs[0]["calls"],
            "seconds": seconds,
            "calls_share": runs[0]["calls"] / naive["calls"],
            "times_faster": naive["seconds"] / seconds,
        }


def _timed(search: Any, model: nn.Module, batches: list[Any], how: dict[str, Any]) -> dict[str, Any]:
    """Search once; return the blocks in their order, calls of blocks, and the seconds that the thread computed."""
    with _counted() as calls:
        start = time.thread_time()
        order = search(model, batches, **how)
        return {"order": order, "seconds": time.thread_time() - start, "calls": calls[0]}


def _ours(model: nn.Module, batches: list[Any], **how: Any) -> list[int]:
    plan = plan_depth(model, remove={"block": GONE}, batches=batches, **how)
    return [describe(model).block_of(step["unit"]) for step in plan.evidence["order"]]


@torch.inference_mode()
def _naive(model: nn.Module, batches: list[Any]) -> list[int]:
    """Try every block that is left, in the whole network, and take out the one that is missed least."""
    held_out = split_batches(batches, torch.device("cpu")).held_out
    dense = [call(model, batch).logits for batch in held_out]
    gone: list[int] = []
    for _ in range(GONE):
        found = {}
        for block in (i for i in range(BLOCKS) if i not in gone):
            pruned = share_copy(model)
            apply_edits(pruned, block_removals(model, [*gone, block]))
            found[block] = mean_divergence(held_out, dense, (call(pruned, batch).logits for batch in held_out))
        gone.append(min(found, key=lambda block: found[block]))
    return gone


@contextmanager
def _counted() -> Iterator[list[int]]:
    """Count calls of blocks that compute something."""
    calls, forward = [0], LlamaDecoderLayer.forward

    def counting(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        return forward(*args, **kwargs)

    LlamaDecoderLayer.forward = counting
    try:
        yield calls
    finally:
        LlamaDecoderLayer.forward = forward


def _llama(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=HIDDEN * 11 // 4,
        num_hidden_layers=BLOCKS,
        num_attention_heads=HIDDEN // 64,
        num_key_value_heads=HIDDEN // 64,
    )
    model: nn.Module = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(SCALE if parameter.ndim > 1 else 1)
    return model


def _batches(seed: int) -> list[Any]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(VOCABULARY, (BATCHES, SAMPLES, TOKENS), generator=generator)
    return [as_inputs({"input_ids": some}) for some in ids]


def closing(rows: Sequence[Row]) -> list[str]:
    """Return a line on the exact search."""
    exact = [row for row in rows if row.method == EXACT]
    calls, times = max(row["calls_share"] for row in exact), min(row["times_faster"] for row in exact)
    return [f"The exact search calls at most {calls:.1%} of the blocks, and is at least {times:.1f} times faster."]


BENCHMARK = Benchmark(
    name="search_cost",
    doc=__doc__,
    title="What a search for blocks costs",
    text=f"""{GONE} of {BLOCKS} blocks of a Llama with random weights (hidden {HIDDEN}) go, judged on {BATCHES} batches
    of {SAMPLES // 4} held-out sequence of {TOKENS} tokens. The naive loop tries every block that is left at each step,
    in the whole network. Calls of blocks that compute something, and processor seconds of one thread; ours are means of
    a run before and one after the naive loop. *Greedy* may miss the best block, *with maps fitted* judges every set
    with the maps that are fitted to it, and the last one is what `plan_depth` does if it is asked for nothing else.
    Sets that leave maps may be others than the naive loop's.""",
    measure=measure,
    axes={"seed": Axis(tuple(range(SEEDS)))},
    also=("method",),
    tables=(
        Table(
            [
                text("method", "search"),
                text("seed"),
                text("block_calls", "block calls", "{:,}"),
                text("calls_share", "of the naive loop's", "{:.1%}"),
                text("seconds", "", "{:.1f}"),
                text("times_faster", "times faster", "{:.1f}"),
                text("same_set", "the same set"),
            ],
            line=("method", "seed"),
        ),
    ),
    closing=closing,
)
main = BENCHMARK.main

if __name__ == "__main__":
    main()
