"""Where callbacks put files: beside the checkpoints."""

from __future__ import annotations

from pathlib import Path

import lightning.pytorch as pl
from lightning.pytorch.callbacks import ModelCheckpoint


def artifact_folder(trainer: pl.Trainer) -> Path | None:
    """Return the folder of the trainer's checkpoints; None if it writes none (no ModelCheckpoint, fast_dev_run)."""
    callback = trainer.checkpoint_callback
    if not isinstance(callback, ModelCheckpoint) or callback.dirpath is None:
        return None
    return Path(callback.dirpath)
