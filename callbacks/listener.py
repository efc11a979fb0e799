"""Callbacks that need to see the network before its first surgery."""

from __future__ import annotations

import lightning.pytorch as pl


class SurgeryListener(pl.Callback):
    """Base of callbacks that are told before a surgery."""

    def before_surgery(self, trainer: pl.Trainer, pl_module: pl.LightningModule, target: str) -> None:
        """Called on every rank before the network at `target` changes."""
