"""The page of the benchmark of blocks out of SmolLM2."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from benchmarks.data.real import made_by
from benchmarks.depth.graph_depth_rows import Row, scores_of
from benchmarks.depth.graph_depth_text import TEXTS
from benchmarks.language.llm_depth_lora import BATCH, LENGTH, RANK, STEPS
from benchmarks.language.llm_depth_scores import ASKED, QUESTIONS, WINDOW, WINDOWS, WRITTEN
from prunerecover.cost.statistics import Interval, mean_interval, paired_difference
from prunerecover.display.markdown import table

OURS, SEED = "prunerecover", 0
STAGES = {"prune_only": "without training", "lora": "after the same recovery by adapters"}
UNITS = {"attention": (12, 20, 28), "mlp": (4, 7, 9)}  # hold as many parameters as 3, 5 and 7 blocks
POOLED = {"exact": TEXTS, "acc": QUESTIONS, "acc_norm": QUESTIONS}  # metrics over all windows, or all questions
BOTH = "both texts"
COLUMNS, VERSUS = (*TEXTS, *POOLED), (*TEXTS, BOTH, "acc")


def markdown(rows: list[Row], methods: Sequence[str], depths: Sequence[int], about: str) -> str:
    """Render a table per depth and stage.

    Args:
        rows: All.
        methods: In the order of the tables.
        depths: How many blocks go.
        about: What the page is of, and what everybody reads.
    """
    devices = sorted({row["device"] for row in rows})
    judged = " and ".join(f"{count} windows of {text}" for text, count in WINDOWS.items())
    lines = [
        "# Blocks out of SmolLM2-135M",
        "",
        *made_by(sorted({row["command"] for row in rows})),
        f"{about} Loss in nats per token on {judged} of {WINDOW} tokens of held-out text. Questions: percent answered "
        f"right of {ASKED} of each of {len(QUESTIONS)} sets ({', '.join(QUESTIONS)}), by the likelihood of answers "
        f"(acc) and per character (acc_norm). Exact: percent of the last {WRITTEN} tokens of the windows that greedy "
        "decoding gets right. All with 95% intervals. Ours minus theirs is paired: below zero, ours loses less; above "
        f"zero, ours answers more. Loss on {BOTH}: the mean of the two. Every figure is of one set of calibration "
        f"texts. Planned, recovered and scored on {' and '.join(devices)}. Recovery: "
        f"{STEPS} steps of {BATCH} sequences of {LENGTH} tokens of wikitext2's validation and tinystories' training "
        f"split, half each, adapters of rank {RANK}, the learning rate picked on other sequences of these splits.",
        "",
    ]
    dense = [row for row in rows if row["method"] == "dense"]
    lines += ["Dense: " + ", ".join(f"{name} {_cell(dense, name)}" for name in COLUMNS) + ".", ""]
    blocks = [row for row in rows if row["unit"] == "block"]
    for count in depths:
        for stage, title in STAGES.items():
            there = [row for row in blocks if row["removed"] == count and row["stage"] == stage]
            cells = [_line(method, there) for method in methods if any(row["method"] == method for row in there)]
            versus = (f"ours minus theirs, {name}" for name in VERSUS)
            head = ("method", "blocks gone", *COLUMNS, *versus)
            lines += [f"## {count} of 30 blocks, {title}", "", table(head, cells), ""] if cells else []
    return "\n".join([*lines, *_parts(rows, depths)])


def _parts(rows: Sequence[Row], depths: Sequence[int]) -> list[str]:
    """Render attentions and MLPs beside as many blocks as hold their parameters."""
    cells = []
    for (unit, counts), (stage, title) in product(UNITS.items(), STAGES.items()):
        at_stage = [row for row in rows if row["stage"] == stage]
        for count, instead in zip(counts, depths, strict=True):
            there = [row for row in at_stage if (row["unit"], row["removed"]) == (unit, count)]
            blocks = [row for row in at_stage if (row["unit"], row["removed"]) == ("block", instead)]
            for method in dict.fromkeys(row["method"] for row in there):
                own = [row for row in there if row["method"] == method]
                about = (f"{count} {unit}s, {title}", method, f"{own[0]['params_share']:.1%}")
                ahead = (_difference(blocks, own, name) for name in TEXTS)
                cells.append((*about, *(_cell(own, name) for name in TEXTS), *ahead))
    versus = (f"{OURS} without blocks minus this, {name}" for name in TEXTS)
    found = table(("gone", "method", "parameters left", *TEXTS, *versus), cells)
    return ["## Attentions and MLPs with the parameters of 3, 5 and 7 blocks", "", found, ""] if cells else []


def column(rows: Sequence[Row], name: str) -> NDArray[np.float64] | None:
    """Return the scores of one column, domains one behind the other; None if some are missing."""
    domains = POOLED.get(name, TEXTS if name == BOTH else (name,))
    own = {row["domain"]: scores_of(row) for row in rows if row["metric"] == (name if name in POOLED else "loss")}
    if not own.keys() >= set(domains):
        return None
    found = [own[domain] for domain in domains]
    if name == BOTH:  # so that the mean of all is the mean of the domains' means
        found = [values * sum(map(len, found)) / (len(found) * len(values)) for values in found]
    return (100 if name in POOLED else 1) * np.concatenate(found)


def _line(method: str, there: list[Row]) -> tuple[str, ...]:
    own = [row for row in there if row["method"] == method]
    blocks = " ".join(map(str, own[0]["blocks"]))
    ahead = (_difference(there, own, name) if method != OURS else "" for name in VERSUS)
    return (method, blocks, *(_cell(own, name) for name in COLUMNS), *ahead)


def _cell(rows: Sequence[Row], name: str) -> str:
    values = column(rows, name)
    return "" if values is None else _told(mean_interval(values, seed=SEED), 1 if name in POOLED else 3, "")


def _difference(there: list[Row], theirs: list[Row], name: str) -> str:
    ours = column([row for row in there if row["method"] == OURS], name)
    other = column(theirs, name)
    if ours is None or other is None:
        return ""
    return _told(paired_difference(other, ours, seed=SEED), 1 if name in POOLED else 3, "+")


def _told(found: Interval, digits: int, sign: str) -> str:
    value, low, high = (f"{number:{sign}.{digits}f}" for number in (found.value, found.low, found.high))
    return f"{value} ({low} to {high})"
