"""Cost of a routed language model: prompts and generations by the dense, the pruned and the routed model.

    python -m benchmarks.routing.routed_decode

Weights are random and no data are needed, since neither changes the cost. A Llama-shaped decoder writes 128 tokens
after a prompt of 64, and the first token after a prompt of 256 (prefill): dense, without a quarter of its blocks, and
through `RoutedCausalLM`, whose prefix router reads the prompt with the first two blocks and picks between two sets of
as many blocks. The models take turns, and time is the thread's processor time, because the machine may be shared. A
step's bytes are all weights but the embedding table. About 6 minutes on a core.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from typing import Any

import numpy as np
import torch

from benchmarks.data.language_models import random_llama, routed, weight_bytes, without_blocks
from benchmarks.runner.benchmark import Axis, Benchmark
from benchmarks.runner.page import Table, figure, text
from benchmarks.runner.plans import pruned
from benchmarks.runner.rows import Figure
from benchmarks.runner.turns import in_turns

HIDDEN, ROUNDS, WARMUP, SEED = 1024, 10, 1, 0
PHASES = {"generation": (64, 128), "prefill": (256, 1)}  # prompt tokens, and generated tokens
SETS = ((3, 5), (4, 6))
PAIRS = (("pruned", "dense"), ("routed", "dense"), ("routed", "pruned"))


@cache
def models() -> dict[str, Any]:
    """Return the dense, the pruned and the routed model."""
    heads = {"num_attention_heads": HIDDEN // 64, "num_key_value_heads": HIDDEN // 64}
    sizes = {"vocab_size": 1000, "intermediate_size": HIDDEN * 11 // 4, "num_hidden_layers": 8, **heads}
    dense = random_llama(HIDDEN, torch.device("cpu"), max_position_embeddings=256, **sizes)
    return {"dense": dense, "pruned": pruned(dense, without_blocks(dense, SETS[0])), "routed": routed(dense, SETS)}


def measure(phase: str) -> Iterator[dict[str, Any]]:
    """Time all models in turns."""
    (prompt, new), every = PHASES[phase], models()
    ids = torch.randint(1000, (1, prompt), generator=torch.Generator().manual_seed(SEED))
    how = {"attention_mask": torch.ones_like(ids), "do_sample": False, "min_new_tokens": new, "max_new_tokens": new}
    runs = {name: partial(model.generate, ids, **how) for name, model in every.items()}
    with torch.inference_mode():
        times = in_turns(runs, ROUNDS, WARMUP, ids.device)
    left = weight_bytes(every["pruned"]) / weight_bytes(every["dense"])
    for one, other in PAIRS:
        yield {
            "method": f"{one} / {other}",
            "time": Figure.median(times[one] / times[other], SEED),
            "bytes_share": left if other == "dense" else 1.0,
            "ms": 1e3 * float(np.median(times[one])),
        }


BENCHMARK = Benchmark(
    title="What a routed language model costs",
    text=f"""A Llama of 8 blocks with random weights (hidden {HIDDEN}, fp32) writes 128 tokens after a prompt of 64
    (generation), and the first token after one of 256 (prefill): whole, without {len(SETS[0])} of its blocks, and
    routed by its first two blocks to one of {len(SETS)} sets without as many. Shares of processor seconds of one thread
    within each of {ROUNDS} rounds, in which all take turns: medians with 95% intervals. In a generation the pruned
    model was asked for at most 1.06 times its share of the bytes, and routing for at most 1%.""",
    measure=measure,
    axes={"phase": Axis(tuple(PHASES))},
    also=("method",),
    tables=(
        Table(
            [
                text("phase"),
                text("method", "time of"),
                figure("time", "share", 1, 100, "%"),
                text("bytes_share", "bytes read per token", "{:.1%}"),
                text("ms", "median ms of the first", "{:,.0f}"),
            ],
            line=("phase", "method"),
        ),
    ),
)

if __name__ == "__main__":
    BENCHMARK.main()
