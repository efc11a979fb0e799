"""Fits with a checkpoint after every step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from cases import trainers
from cases.models.habits import Plain, dataset, loader
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

from benchmarks.end_to_end.resumable import ResumableLoader

EPOCHS, STEPS = 3, 3


def fit(
    folder: Path,
    callbacks: Callable[[], list[pl.Callback]],
    resume: Path | None = None,
    data: DataLoader | None = None,
    make: Callable[[], pl.LightningModule] = Plain,
    **settings: Any,
) -> pl.LightningModule:
    """Train three epochs of three steps; `step=N.ckpt` comes after every step, `epoch=...ckpt` after validation."""
    module = make()
    steps = ModelCheckpoint(folder, filename="{step}", save_top_k=-1, every_n_train_steps=1)
    epochs = ModelCheckpoint(folder, filename="{epoch}-{step}", save_top_k=-1, monitor="val_loss")
    data = ResumableLoader(dataset(8 * STEPS), 8) if data is None else data
    settings = {"data": data, "val": loader(8, shuffle=False), "resume": resume, "epochs": EPOCHS, **settings}
    trainers.fit(folder, module, *callbacks(), steps, epochs, **settings)
    return module
