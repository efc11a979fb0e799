"""The base of all callbacks that read or write the ledger."""

from __future__ import annotations

from typing import ClassVar

import lightning.pytorch as pl

from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.callbacks.ledger.target import find_network


class LedgerCallback(pl.Callback):
    """Base: the ledger is there before a checkpoint is read, and optimizers are in order before their state is.

    Attributes:
        target: Path of the network inside the LightningModule; None: see `network_path`.
        prunes: Whether this callback removes something.
        adapts: Whether it injects adapters.
    """

    target: str | None = None
    prunes: ClassVar[bool] = False
    adapts: ClassVar[bool] = False

    def network_path(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> str:
        """Return this callback's target, else what all pruning callbacks name, else the only network there is."""
        pruning = (c for c in trainer.callbacks if isinstance(c, LedgerCallback) and c.prunes)  # type: ignore[attr-defined]
        named = {callback.target for callback in pruning}
        shared = named.pop() if len(named) == 1 else None
        return find_network(pl_module, self.target if self.target is not None else shared)

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Install the ledger before any checkpoint is read."""
        Ledger.of(pl_module).from_checkpoint = None

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Resume from the ledger of a checkpoint, if one was read."""
        Ledger.of(pl_module).resume(trainer, pl_module)

    def before_surgery(self, trainer: pl.Trainer, pl_module: pl.LightningModule, target: str) -> None:
        """Called on every rank before the network at `target` changes.

        Args:
            trainer: That is fitting.
            pl_module: Holds the network.
            target: Path of the network in it.
        """
