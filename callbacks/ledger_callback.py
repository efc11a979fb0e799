"""What all callbacks that read or write the ledger have in common."""

from __future__ import annotations

import lightning.pytorch as pl

from prunerecover.callbacks.ledger import Ledger


class LedgerCallback(pl.Callback):
    """Base: the ledger is there before a checkpoint is read, and optimizers are in order before their state is."""

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Install the ledger before any checkpoint is read."""
        Ledger.of(pl_module).from_checkpoint = None

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Resume from the ledger of a checkpoint, if one was read."""
        Ledger.of(pl_module).resume(trainer, pl_module)

    def before_surgery(self, trainer: pl.Trainer, pl_module: pl.LightningModule, target: str) -> None:
        """Called on every rank before the network at `target` changes."""
