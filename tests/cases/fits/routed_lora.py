"""Fits of a tiny Llama of six blocks with adapters shared by all sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from cases import trainers
from cases.models.routed_language import sets_of
from cases.models.tiny import VOCABULARY, tiny_llama
from cases.trainers import every_epoch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from prunerecover.callbacks import RoutedLoRARecover

BLOCKS = 6


class Language(pl.LightningModule):
    """A user's own module around a language model."""

    def __init__(self, **changes: Any) -> None:
        super().__init__()
        self.net = tiny_llama(num_hidden_layers=BLOCKS, **changes).train()

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        return self.net(**batch).loss  # type: ignore[no-any-return]

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        self.log("val_loss", self.net(**batch).loss)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), 1e-2)


class ManualLanguage(Language):
    """The same under manual optimization."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:  # type: ignore[override]
        optimizer: Any = self.optimizers()
        loss = self.net(**batch).loss
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()


def tokens(rows: int = 16, length: int = 8) -> Tensor:
    return torch.randint(3, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(0))


def batches(rows: int = 16, batch_size: int = 4, shuffle: bool = True) -> DataLoader[Any]:
    samples: Any = [{"input_ids": row, "labels": row} for row in tokens(rows)]
    return DataLoader(samples, batch_size, shuffle=shuffle)


def shared(network: nn.Module, **arguments: Any) -> RoutedLoRARecover:
    return RoutedLoRARecover(**{"sets": sets_of(network), "rank": 2, **arguments})


def fit(
    folder: Path,
    *callbacks: pl.Callback,
    module: pl.LightningModule | None = None,
    resume: Path | None = None,
    data: Any = None,
    **settings: Any,
) -> tuple[Any, pl.Trainer]:
    """Fit and keep a file of every epoch; a RoutedLoRARecover comes first unless given."""
    module = Language() if module is None else module
    if not any(isinstance(c, RoutedLoRARecover) for c in callbacks):
        callbacks = (shared(module.net), *callbacks)  # type: ignore[arg-type]
    data = batches() if data is None else data
    return module, trainers.fit(folder, module, *callbacks, every_epoch(folder), data=data, resume=resume, **settings)
