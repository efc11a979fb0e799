"""A user's modules, pruned like by the callbacks and saved like by a Trainer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from cases.models.tiny import stir, tiny_timm
from cases.tiny_plans import VIT, tiny_plan
from torch import Tensor, nn

from prunerecover import merge
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.model.paths import get_module, unwrap


class Classifier(pl.LightningModule):
    """A user's module: a network, a second layer, and hyperparameters for the shapes of both."""

    def __init__(self, depth: int = 4, width: int = 3) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = tiny_timm(depth=depth)
        self.beside = nn.Linear(5, width)

    def forward(self, images: Tensor) -> Tensor:
        return self.beside(self.net(images))


def save(module: pl.LightningModule, path: Path) -> Path:
    """Save as a Trainer does."""
    trainer = pl.Trainer(logger=False, enable_checkpointing=False, accelerator="cpu")
    trainer.strategy.connect(module)
    trainer.save_checkpoint(path)
    return path


def prune(module: pl.LightningModule, case: str = "everything", target: str = "net", merged: bool = False) -> None:
    """Prune a module the way the callbacks do."""
    network = unwrap(get_module(module, target))
    ledger = Ledger.of(module)
    ledger.apply(module, target, tiny_plan(network, *VIT[case]))
    if merged:
        ledger.plans[target] += merge(network)


def stirred(module: pl.LightningModule) -> pl.LightningModule:
    stir(module, seed=5, scale=1.1)
    return module


def rewrite(path: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    checkpoint = torch.load(path, weights_only=True)
    change(checkpoint)
    torch.save(checkpoint, path)
    return path
