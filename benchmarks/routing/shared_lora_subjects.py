"""Subjects of `shared_lora.py`, in LightningModules like a user's: stories260K and SmolLM2-135M."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from itertools import combinations
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn

from benchmarks.data import smollm2
from benchmarks.data.language_models import STORIES, stories260k, without_blocks
from benchmarks.data.real import data_root
from benchmarks.data.text import TEXTS, calibration, losses
from benchmarks.language.llm_depth_lora import BATCH, LENGTH, PRECISION, SOURCES, drawn_sequences, next_token
from prunerecover import PlanSet, plan_depth
from prunerecover.recipes.data.language.text_data import TextData
from prunerecover.recipes.tasks.causal_lm import CausalLM
from prunerecover.recovery.shared_lora import WithoutUnits
from prunerecover.surgery.merging import block_removals

SETS = 4
CHOSEN_ON = 64  # stories
LLM = "SmolLM2-135M"
SCORED = {STORIES: 150, LLM: 64}  # texts
CALIBRATED = 8  # calibration texts of each of SmolLM2's sets
SHARED, OWN, LONG, ALONE = "shared", "own", "own, as many steps as shared", "shared, no teacher"


ARMS = {STORIES: {1: (SHARED, OWN, ALONE, LONG), 2: (SHARED, OWN)}, LLM: {5: (SHARED, OWN)}}  # by blocks that go


@dataclass(frozen=True)
class Subject:
    """Language model with its data and recovery.

    Attributes:
        blocks: Number of blocks.
        steps: Training steps of each set's adapters.
        rank: Rank of the adapters.
        learning_rate: Peak learning rate.
        network: Returns the dense network.
        module: Maker of the LightningModule around a network.
        training: Function that returns the training sequences.
        held_out: Function that returns the held-out texts, `(N, LENGTH)`.
        sets: Function from a number of blocks to the sets.
        about: Text for the page: the choice of the sets, and the learning rate.
        trainer: Further arguments of the Trainer.
    """

    blocks: int
    steps: int
    rank: int
    learning_rate: float
    network: Callable[[], nn.Module]
    module: Callable[[], pl.LightningModule]
    training: Callable[[], Any]
    held_out: Callable[[], Tensor]
    sets: Callable[[int], PlanSet]
    about: str
    trainer: Mapping[str, Any]


def first_tokens(tokenizer: Any, source: tuple[str, str], count: int, seed: int) -> Tensor:
    """Return the first tokens of texts drawn with a seed, `(count, LENGTH)`; too few texts are an error."""
    found = calibration(tokenizer, source, count, LENGTH, seed)
    if len(found) != count:
        raise ValueError(f"Expected {count} texts of {LENGTH} tokens in {source[1]}, but there are {len(found)}.")
    return found


def _folder() -> str:
    return str(data_root() / "models" / "stories260K")


def _stories_module() -> pl.LightningModule:
    return CausalLM(_folder(), learning_rate=SUBJECTS[STORIES].learning_rate, warmup_epochs=0.05)


@cache
def _packed_stories() -> Any:
    data = TextData(str(data_root() / "data" / "tinystories"), model=_folder(), length=LENGTH, batch_size=BATCH)
    data.setup("fit")
    return data.train_dataloader().dataset


def _held_out_stories() -> Tensor:
    return first_tokens(stories260k()[1], TEXTS["tinystories"], SCORED[STORIES], seed=0)


@cache
def _least_missed(blocks: int) -> PlanSet:
    """Return the sets of `blocks` blocks with the least loss, all without the first block."""
    network, tokenizer = stories260k()
    ids = first_tokens(tokenizer, ("tinystories", "train.jsonl"), CHOSEN_ON, seed=1)
    pairs = {}
    for pair in combinations(range(1, SUBJECTS[STORIES].blocks), blocks):
        with WithoutUnits(network, block_removals(network, pair)):
            pairs[pair] = float(losses(network, ids).mean())
    best = sorted(sorted(pairs, key=lambda pair: pairs[pair])[:SETS])
    plans = tuple(without_blocks(network, pair) for pair in best)
    return PlanSet(names=tuple("+".join(map(str, pair)) for pair in best), plans=plans)


def _llm_module() -> pl.LightningModule:
    return next_token(copy.deepcopy(smollm2.network()).train(), SUBJECTS[LLM].learning_rate)


def _held_out_texts() -> Tensor:
    each = SCORED[LLM] // len(TEXTS)
    return torch.cat([first_tokens(smollm2.tokenizer(), source, each, seed=0) for source in TEXTS.values()])


@cache
def _by_divergence(blocks: int) -> PlanSet:
    """Return sets that change the output least on texts of two sources, with two draws of texts each."""
    network, found = smollm2.network(), {}
    for draw in range(SETS // len(SOURCES)):
        for source in SOURCES:
            ids = first_tokens(smollm2.tokenizer(), source, CALIBRATED, seed=draw)
            how: dict[str, Any] = {"replace": "zero", "ignore": ("model.layers.0",)}
            plan = plan_depth(network, remove={"block": blocks}, batches=[{"input_ids": ids}], **how)
            gone = sorted(int(name.rpartition(".")[2]) for name in plan.removed["block"])
            found["+".join(map(str, gone))] = without_blocks(network, gone)
    return PlanSet(names=tuple(found), plans=tuple(found.values()))


SUBJECTS = {
    STORIES: Subject(
        blocks=5,
        steps=100,
        rank=8,
        learning_rate=1e-2,
        network=lambda: stories260k()[0],
        module=_stories_module,
        training=_packed_stories,
        held_out=_held_out_stories,
        sets=_least_missed,
        about="Without the blocks that it misses least. The learning rate was picked among 0.003, 0.01 and 0.02 on "
        "training stories with pairs of blocks out, in fits of 75 steps of 8 stories, mostly of shared adapters.",
        trainer={},
    ),
    LLM: Subject(
        blocks=30,
        steps=24,
        rank=16,
        learning_rate=3e-3,
        network=smollm2.network,
        module=_llm_module,
        training=partial(drawn_sequences, SETS * 24 * BATCH),
        held_out=_held_out_texts,
        sets=_by_divergence,
        about="Without the blocks that change the output least, on eight texts of wikitext2's validation or of "
        "tinystories' training split, two draws of each. Half of the training sequences are of either split. The "
        "learning rate is that of the benchmark of blocks out of this model.",
        trainer=PRECISION,
    ),
}
