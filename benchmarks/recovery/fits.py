"""A classifier in a Trainer that says nothing, for the benchmarks of recovery."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, AdamW, Optimizer
from torch.utils.data import DataLoader, TensorDataset

OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "SGD": lambda parameters, rate: SGD(parameters, rate, momentum=0.9, weight_decay=5e-4),
    "AdamW": lambda parameters, rate: AdamW(parameters, rate, weight_decay=0.01),
}


class Classifier(pl.LightningModule):
    """A network that learns classes at a constant rate.

    Args:
        net: Images to logits.
        optimizer: Name of one of `OPTIMIZERS`.
        rate: Learning rate.
        classes: Of the logits, those that labels count; None: all.
    """

    def __init__(self, net: nn.Module, optimizer: str, rate: float, classes: Tensor | None = None) -> None:
        super().__init__()
        self.net, self.optimizer, self.rate, self.classes = net.train(), optimizer, rate, classes

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        """Return the loss, with half of the batches mirrored."""
        images, labels = batch
        logits = self.net(images.flip(3) if torch.rand(()) < 0.5 else images)
        return F.cross_entropy(logits if self.classes is None else logits[:, self.classes], labels)

    def configure_optimizers(self) -> Optimizer:
        """Return the optimizer."""
        return OPTIMIZERS[self.optimizer](self.parameters(), self.rate)


def fit(
    module: Classifier,
    data: tuple[Tensor, Tensor],
    callbacks: Iterable[pl.Callback],
    epochs: int,
    *,
    batch: int,
    seed: int,
    resume: Path | None = None,
    save: Path | None = None,
    **settings: Any,
) -> nn.Module:
    """Train, and return the network.

    Args:
        module: What trains.
        data: Images and labels.
        callbacks: Of the Trainer.
        epochs: At which the fit ends.
        batch: Images of a step.
        seed: Of the order of the images, which differs from epoch to epoch.
        resume: A checkpoint to go on from.
        save: Where a checkpoint is written at the end.
        settings: Further arguments of the Trainer.
    """
    quiet: dict[str, Any] = {**settings, "logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    with tempfile.TemporaryDirectory() as folder, isolate_rng():
        pl.seed_everything(seed, verbose=False)
        trainer = pl.Trainer(
            max_epochs=epochs,
            accelerator="cpu",
            callbacks=[*callbacks],
            enable_checkpointing=False,
            default_root_dir=folder,
            **quiet,
        )
        loader = DataLoader(TensorDataset(*data), batch, shuffle=True)
        trainer.fit(module, loader, ckpt_path=None if resume is None else str(resume))
        if save is not None:
            trainer.save_checkpoint(save)
    return module.net.eval()
