"""What a routed language model costs: prompts and generations by the dense, the pruned and the routed model.

    python -m benchmarks.routing.routed_decode

Random weights, no data: cost does not depend on them. A Llama-shaped decoder writes 128 tokens after a prompt of 64,
and the first token after one of 256 (prefill): whole, without a quarter of its blocks, and through `RoutedCausalLM`,
whose prefix router reads the prompt with the first two blocks and picks one of two sets of as many blocks. They take
turns, and time is that of one thread on its processor, for the machine may be shared. The bytes are those of all
weights that a step reads: all but the embedding table. About 6 minutes on a core.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.progress import track
from torch import nn

from benchmarks.data.real import command, made_by, parser, write
from benchmarks.depth.graph_depth_decode import decoder, weight_bytes
from prunerecover import PlanSet, RoutedCausalLM, apply_plan
from prunerecover.cost.latency import stopwatch_for
from prunerecover.cost.statistics import median_interval
from prunerecover.display.markdown import table
from prunerecover.routing.router import PrefixRouter
from prunerecover.surgery.merging import block_removals, merge
from prunerecover.surgery.provenance import plan_for

NAME = "routed_decode"
HIDDEN, ROUNDS, WARMUP, SEED = 1024, 10, 1, 0
PHASES = {"generation": (64, 128), "prefill": (256, 1)}  # tokens of the prompt, and behind it
SETS = ((3, 5), (4, 6))
AT_MOST = 1.06  # share of the time, over that of the bytes
ROUTING = 0.01  # share of a generation that routing may take


def main() -> None:
    """Measure and write the page."""
    parser(__doc__).parse_args()
    torch.set_num_threads(1)
    dense = decoder(HIDDEN)
    plans = [plan_for(dense, block_removals(dense, blocks), method="by hand") for blocks in SETS]
    pruned = copy.deepcopy(dense)
    apply_plan(pruned, plans[0])
    merge(pruned)
    routed = _routed(dense, PlanSet(names=("a", "b"), plans=tuple(plans)))
    models = {"dense": dense, "pruned": pruned, "routed": routed}
    times = {phase: _times(models, *sizes) for phase, sizes in PHASES.items()}
    bytes_share = weight_bytes(pruned) / weight_bytes(dense)
    rows = [
        _row(phase, one, other, own[one] / own[other], bytes_share if other == "dense" else 1.0)
        for phase, own in times.items()
        for one, other in (("pruned", "dense"), ("routed", "dense"), ("routed", "pruned"))
    ]
    medians = {p: {name: 1e3 * float(np.median(took)) for name, took in own.items()} for p, own in times.items()}
    write(NAME, {"rows": rows, "ms": medians}, _page(rows, medians, bytes_share))


def _routed(dense: nn.Module, sets: PlanSet) -> RoutedCausalLM:
    torch.manual_seed(SEED)
    return RoutedCausalLM(dense, sets, PrefixRouter(HIDDEN, len(SETS)).eval())


def _times(models: Mapping[str, Any], prompt: int, new: int) -> dict[str, NDArray[np.float64]]:
    """Return processor seconds by model, one per round; every round has another order."""
    ids = torch.randint(1000, (1, prompt), generator=torch.Generator().manual_seed(SEED))
    how = {"attention_mask": torch.ones_like(ids), "do_sample": False, "min_new_tokens": new, "max_new_tokens": new}
    with torch.inference_mode():
        runs = {name: partial(model.generate, ids, **how) for name, model in models.items()}
        return in_turns(runs, ROUNDS, WARMUP, ids.device)


def in_turns(
    runs: Mapping[str, Callable[[], object]], rounds: int, warmup: int, device: torch.device
) -> dict[str, NDArray[np.float64]]:
    """Return seconds by what is run, one per round behind the first ones; every round has another order."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    seconds, names = stopwatch_for(device), list(runs)
    for number in track(range(warmup + rounds), "rounds"):
        for name in (*names[number % len(names) :], *names[: number % len(names)]):
            found[name].append(seconds(runs[name]))
    return {name: np.array(own[warmup:]) for name, own in found.items()}


def _row(phase: str, one: str, other: str, ratios: NDArray[np.float64], bytes_share: float) -> dict[str, Any]:
    found = median_interval(ratios, seed=SEED)
    return {
        "model": f"Llama, 8 layers, hidden {HIDDEN}",
        "phase": phase,
        "method": f"{one} / {other}",
        "metric": "time_share",
        "value": found.value,
        "ci_low": found.low,
        "ci_high": found.high,
        "n": len(ratios),
        "bytes_share": bytes_share,
        "threads": 1,
    }


def _page(rows: list[dict[str, Any]], medians: Mapping[str, Mapping[str, float]], bytes_share: float) -> str:
    (prompt, new), (long, _) = PHASES.values()
    cells = [
        (row["phase"], row["method"], *(f"{100 * row[key]:.1f}%" for key in ("value", "ci_low", "ci_high")))
        for row in rows
    ]
    value = {(row["phase"], row["method"]): row["value"] for row in rows}
    over, routing = (value["generation", pair] for pair in ("pruned / dense", "routed / pruned"))
    took = [f"{phase}: {', '.join(f'{name} {ms:,.0f}' for name, ms in own.items())}" for phase, own in medians.items()]
    return "\n".join(
        [
            "# What a routed language model costs",
            "",
            *made_by([command()]),
            f"A Llama of 8 blocks with random weights (hidden {HIDDEN}, fp32) writes {new} tokens after a prompt of "
            f"{prompt} (generation), and the first token after one of {long} (prefill): whole, without {len(SETS[0])} "
            f"of its blocks, and routed by its first two blocks to one of {len(SETS)} sets without as many. Shares of "
            f"processor seconds of one thread within each of {ROUNDS} rounds, in which all take turns: medians with "
            f"95% intervals. The pruned model reads {100 * bytes_share:.1f}% of the dense one's bytes per token.",
            "",
            table(("", "time of", "share", "from", "to"), cells),
            "",
            f"Median milliseconds of a {'; of a '.join(took)}.",
            "",
            f"In a generation the pruned model takes {over / bytes_share:.2f} times its share of the bytes ({AT_MOST} "
            f"was asked for at most), and routing adds {100 * (routing - 1):.2f}% ({100 * ROUTING:g}% at most).",
        ]
    )


if __name__ == "__main__":
    main()
