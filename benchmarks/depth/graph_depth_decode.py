"""Whether time follows the weights that are read: a Llama-shaped decoder that writes token by token, on one thread.

Random weights, no data: cost does not depend on them. Layers, attentions or whole blocks are taken out at random, the
network is merged, and a run of single tokens with a key-value cache, batch 1, is timed against the dense network's in
interleaved pairs, both eager or both compiled. Time is that of the one thread on its processor, for the machine may be
shared. The bytes are those of all weights that such a step reads, all but the embedding table, and of the keys and
values that are in the cache.

`--methods compiled 1024 "12 layers"` makes only such rows: any modes, hidden sizes and removals may be named.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.depth.graph_depth_decoding import PROMPT, WRITTEN, CompiledDecoding, Decoding
from benchmarks.depth.graph_depth_rows import Row, add, pruned, rows_so_far, shares
from prunerecover import Plan, plan_depth
from prunerecover.cost.latency import latency_ratio
from prunerecover.display.markdown import table
from prunerecover.model.key_values import cache_returned

MODEL = "Llama, 8 layers, hidden {}"
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


@dataclass(frozen=True)
class Case:
    """What is taken out, and how the networks run then.

    Args:
        mode: eager or compiled.
        unit: Under which the row is listed.
        remove: How many units of each kind go.
    """

    mode: str
    unit: str
    remove: dict[str, int]

    @property
    def name(self) -> str:
        """What is taken out, in words."""
        return ", ".join(f"{n} {kind}s" for kind, n in self.remove.items())


def run(methods: tuple[str, ...] = ()) -> None:
    """Make the rows that are missing.

    Args:
        methods: Modes, hidden sizes and removals to measure; of what is not named, all.
    """
    for hidden in HIDDEN:
        left = [about for about in cases(hidden) if asked(hidden, about, methods) and not is_made(hidden, about)]
        if left:
            rows_of(hidden, left)


def rows_of(hidden: int, wanted_: list[Case]) -> None:
    """Make rows against one dense network, which is compiled once."""
    dense = decoder(hidden)
    prompt = calibration()[:1]
    timed = {mode: MODES[mode](dense, prompt) for mode in {about.mode for about in wanted_}}
    for about in wanted_:
        add(row(timed[about.mode], hidden, about))


def wanted() -> list[Row]:
    """Return what each row that this benchmark wants is about."""
    several = [(hidden, about) for mode in MODES for hidden in HIDDEN for about in cases(hidden) if about.mode == mode]
    return [{"model": MODEL.format(hidden), "method": about.name, "mode": about.mode} for hidden, about in several]


def cases(hidden: int) -> list[Case]:
    """Return what is measured at a hidden size."""
    several = [Case("eager", unit, remove) for unit, removals in REMOVED.items() for remove in removals]
    if hidden in COMPILED:
        several += [Case("compiled", about.unit, about.remove) for about in several if about.unit != "attention"]
    return several


def asked(hidden: int, about: Case, methods: tuple[str, ...]) -> bool:
    """Whether a case is among those that modes, hidden sizes and removals name."""
    names = [case.name for case in cases(hidden)]
    sorts = ((about.mode, list(MODES)), (str(hidden), list(map(str, HIDDEN))), (about.name, names))
    return all(own in methods or not set(methods) & set(several) for own, several in sorts)


def is_made(hidden: int, about: Case) -> bool:
    """Whether there is a row of a case."""
    rows = rows_so_far(subject="decode", model=MODEL.format(hidden), method=about.name)
    return any(row.get("mode", "eager") == about.mode for row in rows)


def calibration() -> Tensor:
    """Return eight prompts `(8, PROMPT)`."""
    return torch.randint(1000, (8, PROMPT), generator=torch.Generator().manual_seed(SEED))


def row(timed: Decoding, hidden: int, about: Case) -> Row:
    """Take units out of a network, check that the cache still serves, and time it.

    Args:
        timed: The dense network, ready to decode in the mode of the case.
        hidden: Its hidden size.
        about: What to take out.
    """
    dense, ids, remove = timed.network, calibration(), about.remove
    plan = plan_depth(
        dense, remove=remove, batches=[{"input_ids": ids}], importance="random", replace="zero", search="one_shot"
    )
    other = pruned(dense, plan)
    check_cache(other, ids[:1])
    decoding = MODES[about.mode](other, ids[:1])
    check_mode(decoding, ids[:1])
    found = latency_ratio(timed, decoding, TOKEN, pairs=PAIRS, warmup=WARMUP, threads=1)
    return {
        "subject": "decode",
        "model": MODEL.format(hidden),
        "method": about.name,
        "mode": about.mode,
        "unit": about.unit,
        "budget": remove,
        **shares(dense, other, {"input_ids": ids[:1]}),
        "bytes_share": step_bytes(decoding) / step_bytes(timed),
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


def check_mode(decoding: Decoding, prompt: Tensor) -> None:
    """Raise RuntimeError if a network does not write in its mode what it writes in eager mode."""
    if not torch.allclose(decoding(TOKEN), Decoding(decoding.network, prompt)(TOKEN), atol=1e-3):
        raise RuntimeError("Expected the same logits as in eager mode, but they differ.")


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


def step_bytes(decoding: Decoding) -> int:
    """Return the bytes that a step reads: of weights, and of the cache as it is behind the prompt."""
    return weight_bytes(decoding.network) + decoding.cache_bytes()


def weight_bytes(network: nn.Module) -> int:
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
    """Render a table per mode."""
    lines = [
        f"Decoding of {WRITTEN} single tokens behind a prompt of {PROMPT}, batch 1, fp32, random weights, pruned and "
        f"merged, as shares of the dense network's: the median of {PAIRS} interleaved pairs with its 95% interval, in "
        "processor time of one thread. Units are drawn at random. Compiled: both networks as one graph per token "
        "(torch.compile with inductor, Dynamo's guards left out), fixed shapes and a static cache.",
    ]
    for mode in MODES:
        own = [row for row in rows if row["mode"] == mode]
        lines += ["", f"### {mode.capitalize()}", "", *(rendered(own) if own else [])]
    return lines


def rendered(rows: list[Row]) -> list[str]:
    """Render the rows of one mode as a table."""
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
    return [table(head, cells)]
