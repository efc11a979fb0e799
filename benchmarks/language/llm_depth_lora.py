"""The short recovery of the benchmark of blocks out of SmolLM2: the same adapters, text and steps for every network.

Adapters train on sequences of wikitext2's validation split, also the calibration text of all methods, and of
tinystories' training split, half each, in the same order for all. `LEARNING_RATE` was picked on other sequences of the
same two splits, among 0.001, 0.003 and 0.006.
"""

from __future__ import annotations

import copy
from functools import cache, partial
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from benchmarks.data.real import BF16, DEVICE
from benchmarks.data.smollm2 import tokenizer
from benchmarks.data.text import documents, next_token_loss, token_ids
from benchmarks.runner.fits import Learner, fit
from prunerecover.callbacks import LoRARecover
from prunerecover.callbacks.ledger.ledger import Ledger

SOURCES = (("wikitext2", "valid.txt"), ("tinystories", "train.jsonl"))
STEPS, BATCH, LENGTH = 96, 4, 128
RANK, LEARNING_RATE, SEED = 16, 3e-3, 0
PRECISION = {"precision": "bf16-mixed" if BF16 else "32-true", "gradient_clip_val": 1.0}


def next_token(network: nn.Module, learning_rate: float) -> Learner:
    """Return an ordinary module: next-token loss, AdamW under a cosine over the steps of the fit."""
    optimizer = partial(torch.optim.AdamW, lr=learning_rate, weight_decay=0.0)
    return Learner(network, next_token_loss, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR)


def drawn_sequences(count: int) -> Tensor:
    """Return sequences of both sources in turn, `(count, LENGTH)`."""
    return torch.stack([drawn[: count // len(SOURCES)] for drawn in packed()], 1).flatten(0, 1)


@cache
def packed() -> list[Tensor]:
    """Return all sequences of each source, `(N, LENGTH)`, in an order drawn once."""
    found = []
    for source in SOURCES:
        ids = torch.tensor([token for document in documents(*source) for token in token_ids(tokenizer(), document)])
        rows = ids[: len(ids) // LENGTH * LENGTH].view(-1, LENGTH)
        found.append(rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(SEED))])
    return found


def recovered(
    network: nn.Module, learning_rate: float = LEARNING_RATE, steps: int = STEPS, texts: Tensor | None = None
) -> nn.Module:
    """Return a copy of a network after the recovery, with adapters merged."""
    texts = drawn_sequences(STEPS * BATCH) if texts is None else texts
    pl.seed_everything(SEED, verbose=False)
    module = next_token(copy.deepcopy(network).train(), learning_rate)
    adapters = LoRARecover(rank=RANK, modules_to_save=("norm",), seed=SEED)
    how: dict[str, Any] = {"max_steps": steps, "max_epochs": 1, "accelerator": DEVICE.type, **PRECISION}
    fit(module, DataLoader(texts, BATCH), [adapters], **how)  # type: ignore[arg-type]
    return Ledger.of(module).plain_copy(module, "model").to(DEVICE).eval()
