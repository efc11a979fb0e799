"""Fits of the benchmarks of recovery: an ordinary module at a constant rate, in a silent Trainer."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.data import cifar, tiny_imagenet
from benchmarks.data.real import deit_tiny
from benchmarks.runner.rows import Scores
from benchmarks.width.cifar_models import load
from prunerecover.callbacks.ledger.ledger import Ledger

OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "SGD": partial(SGD, momentum=0.9, weight_decay=5e-4),
    "AdamW": partial(AdamW, weight_decay=0.01),
}


@dataclass(frozen=True)
class Subject:
    """Network to prune and to train.

    Attributes:
        text: Description of the removal, the training and the scores.
        dense: Function that loads the network.
        loader: Function from a seed to the training batches.
        loss: Loss of a network on a batch.
        optimizer: Optimizer of parameters at a rate.
        scores: Function from a network to the scores by image or text, outside the training data.
        rates: Learning rates, the middle one first.
        scale: Factor of the scores on the page; 100 for a share in percent.
        digits: Digits of the scores on the page.
        mirrored: Whether half of the batches of images are mirrored.
        settings: Further arguments of the Trainer.
    """

    text: str
    dense: Callable[[], nn.Module]
    loader: Callable[[int], Any]
    loss: Callable[[nn.Module, Any], Tensor]
    optimizer: Callable[[Any, float], Optimizer]
    scores: Callable[[nn.Module], Scores]
    rates: tuple[float, ...]
    scale: float = 100
    digits: int = 1
    mirrored: bool = True
    settings: Any = None


def resnet(model: str, **more: Any) -> Subject:
    """Return a ResNet of CIFAR-10 under SGD, with further entries."""
    sgd = OPTIMIZERS["SGD"]
    return Subject(dense=partial(load, model), loss=cifar.cross_entropy, **{"optimizer": sgd, **more})


def deit(tested: int, **more: Any) -> Subject:
    """Return DeiT-Tiny on tiny_imagenet's 200 classes under AdamW, with further entries."""
    return Subject(
        dense=lambda: tiny_imagenet.unfused(deit_tiny()),
        loss=tiny_imagenet.loss,
        scores=lambda network: tiny_imagenet.hits(network, tiny_imagenet.validation(tested)),
        settings=tiny_imagenet.PRECISION,
        **{"optimizer": partial(AdamW, weight_decay=0.05), **more},
    )


class Learner(pl.LightningModule):
    """An ordinary module around a subject's network, at a constant rate."""

    def __init__(self, subject: Subject, rate: float) -> None:
        super().__init__()
        self.subject, self.rate = subject, rate
        self.net = subject.dense().train()

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        """Return the loss by the labels."""
        first, *rest = batch
        mirrored = self.subject.mirrored and first.ndim == 4 and bool(torch.rand(()) < 0.5)
        return self.subject.loss(self.net, [first.flip(3) if mirrored else first, *rest])

    def configure_optimizers(self) -> Optimizer:
        """Return the optimizer."""
        return self.subject.optimizer(self.parameters(), self.rate)


def fit(
    subject: Subject,
    rate: float,
    epochs: int,
    seed: int,
    callbacks: Iterable[pl.Callback],
    resume: Path | None = None,
    save: Path | None = None,
) -> nn.Module:
    """Train a subject's network on a core, and return it, with adapters merged.

    Args:
        subject: Network and its data.
        rate: Learning rate.
        epochs: Epoch at which the fit ends.
        seed: Seed of everything random in the fit.
        callbacks: Callbacks of the Trainer.
        resume: Checkpoint to go on from.
        save: Path for a checkpoint at the end.
    """
    with tempfile.TemporaryDirectory() as folder, isolate_rng():
        pl.seed_everything(seed, verbose=False)
        module = Learner(subject, rate)
        trainer = pl.Trainer(
            max_epochs=epochs,
            accelerator="cpu",
            callbacks=[*callbacks],
            default_root_dir=folder,
            **tiny_imagenet.QUIET,
            **(subject.settings or {}),
        )
        trainer.fit(module, subject.loader(seed), ckpt_path=None if resume is None else str(resume))
        if save is not None:
            trainer.save_checkpoint(save)
    return Ledger.of(module).plain_copy(module, "net").eval()


def shuffled(data: tuple[Tensor, ...], size: int, seed: int | None = None) -> DataLoader[Any]:
    """Return data in batches, reshuffled each epoch, by a separate seed if given."""
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    return DataLoader(TensorDataset(*data), size, shuffle=True, generator=generator)
