"""Whether time follows the weights that are read: a Llama-shaped decoder that writes token by token, on one thread.

Random weights, no data: cost does not depend on them. Layers, attentions or whole blocks are taken out at random, the
network is merged, and a run of single tokens with a key-value cache, batch 1, is timed against the dense network's in
interleaved pairs. Time is that of the one thread on its processor, for the machine may be shared. The bytes are those
of all weights that such a step reads: all but the embedding table.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.depth.graph_depth_rows import Row, add, pruned, rows_so_far, shares
from prunerecover import Plan, plan_depth
from prunerecover.cost.latency import latency_ratio
from prunerecover.display.markdown import table
from prunerecover.model.key_values import cache_returned

MODEL = "Llama, 8 layers, hidden {}"
HIDDEN = (512, 1024, 2048, 4096)  # the last one takes 14 GB
PROMPT, WRITTEN, PAIRS, WARMUP, SEED = 64, 8, 20, 2, 0
REMOVED: dict[str, tuple[dict[str, int], ...]] = {
    "attention, layer": ({"attention": 2, "layer": 4}, {"attention": 4, "layer": 8}),
    "layer": ({"layer": 12}, {"layer": 6}, {"layer": 18}),
    "block": ({"block": 4}, {"block": 2}, {"block": 6}),
    "attention": ({"attention": 4}, {"attention": 2}, {"attention": 6}),
}


class Decoding(nn.Module):
    """Writes some tokens after a prompt that is in the cache, and takes them out of it again."""

    def __init__(self, network: nn.Module, prompt: Tensor) -> None:
        super().__init__()
        self.network = network
        with torch.inference_mode():
            self.cache = cache_returned(network(input_ids=prompt, use_cache=True))
        self.start = prompt.shape[1]

    def forward(self, token: Tensor) -> Tensor:
        """Return the logits of the last token."""
        with torch.inference_mode():
            for place in range(self.start, self.start + WRITTEN):
                positions = torch.tensor([[place]])
                logits: Tensor = self.network(
                    input_ids=token, **self.cache, position_ids=positions, use_cache=True
                ).logits
                token = logits[:, -1].argmax(-1, keepdim=True)
            for cache in self.cache.values():
                cache.crop(-WRITTEN)
        return logits


def run(methods: tuple[str, ...] = ()) -> None:
    """Make the rows that are missing."""
    for hidden in HIDDEN:
        dense = decoder(hidden)
        for unit, removals in REMOVED.items():
            for remove in removals:
                name = named(remove)
                if not rows_so_far(model=MODEL.format(hidden), method=name):
                    add(row(dense, hidden, unit, name, remove))


def wanted() -> list[Row]:
    """Return what each row that this benchmark wants is about."""
    removals = [named(remove) for several in REMOVED.values() for remove in several]
    return [{"model": MODEL.format(hidden), "method": name} for hidden in HIDDEN for name in removals]


def named(remove: dict[str, int]) -> str:
    """Return what is taken out, in words."""
    return ", ".join(f"{n} {kind}s" for kind, n in remove.items())


def row(dense: nn.Module, hidden: int, unit: str, name: str, remove: dict[str, int]) -> Row:
    """Take units out, check that the cache still serves, and time."""
    generator = torch.Generator().manual_seed(SEED)
    ids = torch.randint(1000, (8, PROMPT), generator=generator)
    plan = plan_depth(
        dense, remove=remove, batches=[{"input_ids": ids}], importance="random", replace="zero", search="one_shot"
    )
    other = pruned(dense, plan)
    check_cache(other, ids[:1])
    token = torch.tensor([[1]])
    pair = (Decoding(network, ids[:1]) for network in (dense, other))
    found = latency_ratio(*pair, token, pairs=PAIRS, warmup=WARMUP, threads=1)
    return {
        "subject": "decode",
        "model": MODEL.format(hidden),
        "method": name,
        "unit": unit,
        "budget": remove,
        **shares(dense, other, {"input_ids": ids[:1]}),
        "bytes_share": bytes_read(other) / bytes_read(dense),
        "stage": "prune_only",
        "metric": "time_share",
        "value": found.ratio.value,
        "ci_low": found.ratio.low,
        "ci_high": found.ratio.high,
        "n": PAIRS,
        "seed": SEED,
        "dense_ms": found.dense_ms / WRITTEN,
        "pruned_ms": found.pruned_ms / WRITTEN,
        "threads": found.threads,
        "removed": removed(plan),
    }


def check_cache(network: nn.Module, ids: Tensor) -> None:
    """Raise RuntimeError if a network does not say with a cache what it says without."""
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


def bytes_read(network: nn.Module) -> int:
    """Return the bytes of the weights that a step reads."""
    table_: Any = network.get_input_embeddings()  # type: ignore[operator]
    return sum(p.numel() * p.element_size() for p in network.parameters() if p is not table_.weight)


def removed(plan: Plan) -> dict[str, list[str]]:
    """Return what goes, by kind."""
    return {kind: list(names) for kind, names in plan.removed.items()}


def hidden_of(row: Row) -> int:
    """Return the hidden size of a row's model."""
    return next(hidden for hidden in HIDDEN if MODEL.format(hidden) == row["model"])


def section(rows: list[Row]) -> list[str]:
    """Render a table."""
    cells = [
        (
            row["model"],
            row["method"],
            f"{row['params_share']:.1%}",
            f"{row['bytes_share']:.1%}",
            f"{row['value']:.1%} ({row['ci_low']:.1%} to {row['ci_high']:.1%})",
            f"{row['value'] / row['bytes_share']:.2f} ({row['ci_low'] / row['bytes_share']:.2f} to "
            f"{row['ci_high'] / row['bytes_share']:.2f})",
            f"{row['dense_ms']:.1f}, {row['pruned_ms']:.1f}",
        )
        for row in sorted(rows, key=lambda row: (HIDDEN.index(hidden_of(row)), row["unit"], -row["bytes_share"]))
    ]
    head = ("model", "removed", "parameters left", "bytes read", "time", "time / bytes", "ms a token, before and after")
    return [
        f"Decoding of {WRITTEN} single tokens behind a prompt of {PROMPT}, batch 1, fp32, random weights, pruned and "
        f"merged, as shares of the dense network's: the median of {PAIRS} interleaved pairs with its 95% interval, in "
        "processor time of one thread. Units are drawn at random.",
        "",
        table(head, cells),
    ]
