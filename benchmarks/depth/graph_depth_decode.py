"""Decoding time against bytes of weights read: a Llama-shaped decoder, token by token, on one thread.

Weights are random and no data are needed, since neither changes the cost. Layers, attentions or whole blocks are
removed at random, the network is merged, and a run of single tokens with a key-value cache, batch 1, is timed against
the dense network's in interleaved pairs, both eager or both compiled. Time is the thread's processor time, because the
machine may be shared. A step's bytes are all weights but the embedding table, and the keys and values in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.depth.graph_depth_decoding import PROMPT, WRITTEN, CompiledDecoding, Decoding
from benchmarks.runner.page import Column, Line, Table, figure, text, told
from benchmarks.runner.plans import pruned, removed, shares
from benchmarks.runner.rows import Figure, Row
from prunerecover import plan_depth
from prunerecover.cost.latency import latency_ratio
from prunerecover.model.key_values import cache_returned

HIDDEN = (512, 1024, 2048, 4096)  # the last one takes 14 GB
COMPILED = (1024, 2048, 512)
PAIRS, WARMUP, SEED = 20, 2, 0
TOKEN = torch.tensor([[1]])
MODES: dict[str, type[Decoding]] = {"eager": Decoding, "compiled": CompiledDecoding}
REMOVED: dict[str, tuple[dict[str, int], ...]] = {
    "attention, layer": ({"attention": 2, "layer": 4}, {"attention": 4, "layer": 8}),
    "layer": ({"layer": 12}, {"layer": 6}, {"layer": 18}),
    "block": ({"block": 4}, {"block": 2}, {"block": 6}),
    "attention": ({"attention": 4}, {"attention": 2}, {"attention": 6}),
}
COUNTS = {
    ", ".join(f"{n} {kind}s" for kind, n in remove.items()): remove
    for several in REMOVED.values()
    for remove in several
}
NAMES = [
    {"mode": mode, "hidden": hidden, "method": name}
    for mode in MODES
    for hidden in HIDDEN
    for name, remove in COUNTS.items()
    if mode == "eager" or (hidden in COMPILED and [*remove] != ["attention"])
]


def calibration() -> Tensor:
    """Return eight prompts `(8, PROMPT)`."""
    return torch.randint(1000, (8, PROMPT), generator=torch.Generator().manual_seed(SEED))


@lru_cache(maxsize=1)
def dense(mode: str, hidden: int) -> Decoding:
    """Return the dense network, ready to decode; compiled once."""
    return MODES[mode](decoder(hidden), calibration()[:1])


def measure(mode: str, hidden: int, method: str) -> dict[str, Any]:
    """Remove units from a network, check the cache, and time the network."""
    timed, ids = dense(mode, hidden), calibration()
    how: dict[str, Any] = {"importance": "random", "replace": "zero", "search": "one_shot"}
    plan = plan_depth(timed.network, remove=COUNTS[method], batches=[{"input_ids": ids}], **how)
    other = pruned(timed.network, plan)
    check_cache(other, ids[:1])
    decoding = MODES[mode](other, ids[:1])
    check_mode(decoding, ids[:1])
    found = latency_ratio(timed, decoding, TOKEN, pairs=PAIRS, warmup=WARMUP, threads=1)
    return {
        "time": Figure.within(found.ratio, PAIRS),
        **shares(timed.network, other, {"input_ids": ids[:1]}),
        "bytes_share": step_bytes(decoding) / step_bytes(timed),
        "dense_ms": found.dense_ms / WRITTEN,
        "pruned_ms": found.pruned_ms / WRITTEN,
        "removed": removed(plan),
    }


def check_mode(decoding: Decoding, prompt: Tensor) -> None:
    """Raise RuntimeError if a network's logits differ between its mode and eager mode."""
    if not torch.allclose(decoding(TOKEN), Decoding(decoding.network, prompt)(TOKEN), atol=1e-3):
        raise RuntimeError("Expected the same logits as in eager mode, but they differ.")


def check_cache(network: nn.Module, ids: Tensor) -> None:
    """Raise RuntimeError if a network's logits differ with and without a cache."""
    half = ids.shape[1] // 2
    with torch.inference_mode():
        whole = network(input_ids=ids).logits[:, -1]
        first = network(input_ids=ids[:, :half], use_cache=True)
        positions = torch.arange(half, ids.shape[1])[None]
        then = network(input_ids=ids[:, half:], **cache_returned(first), position_ids=positions)
    if not torch.allclose(whole, then.logits[:, -1], atol=1e-3):
        raise RuntimeError("Expected the same logits with a cache as without, but they differ.")


def decoder(hidden: int) -> nn.Module:
    """Return a decoder with random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=1000,
        hidden_size=hidden,
        intermediate_size=hidden * 11 // 4,
        num_hidden_layers=8,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 64,
        max_position_embeddings=256,
    )
    model: nn.Module = LlamaForCausalLM(config)
    return model.eval()


def step_bytes(decoding: Decoding) -> int:
    """Return the bytes that a step reads: the weights, and the cache after the prompt."""
    return weight_bytes(decoding.network) + decoding.cache_bytes()


def weight_bytes(network: nn.Module) -> int:
    """Return the bytes of the weights that a step reads."""
    table_: Any = network.get_input_embeddings()  # type: ignore[operator]
    return sum(p.numel() * p.element_size() for p in network.parameters() if p is not table_.weight)


def over_bytes(line: Line) -> str:
    """Return the share of the time divided by the share of the bytes."""
    return told(line.first.figures["time"], 2, 1 / line.first["bytes_share"])


def about(rows: Sequence[Row]) -> str:
    """Return the lines above the first table."""
    if rows[0]["mode"] != "eager":
        return ""
    return (
        f"Decoding of {WRITTEN} single tokens behind a prompt of {PROMPT}, batch 1, fp32, by a Llama of 8 layers with "
        "random weights, pruned and merged, as shares of the dense network's: the median of "
        f"{PAIRS} interleaved pairs with its 95% interval, in processor time of one thread. Units are drawn at random. "
        "Compiled: both networks as one graph per token (torch.compile with inductor, Dynamo's guards left out), fixed "
        "shapes and a static cache."
    )


TABLES = [
    Table(
        [
            text("hidden"),
            text("method", "removed"),
            text("params_share", "parameters left", "{:.1%}"),
            text("bytes_share", "bytes read", "{:.1%}"),
            figure("time", "time", 1, 100, "%"),
            Column("time / bytes", over_bytes),
            text("dense_ms", "ms a token, before", "{:.1f}"),
            text("pruned_ms", "and after", "{:.1f}"),
        ],
        title="Time follows: decoding, {mode}",
        by=("subject", "mode"),
        line=("hidden", "method"),
        where=lambda row: row["subject"] == "decode",
        text=about,
    )
]
