"""Fits of the benchmarks of recovery: networks with their data, trained at a constant rate."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.data import cifar, tiny_imagenet
from benchmarks.data.real import deit_tiny
from benchmarks.runner import fits
from benchmarks.runner.fits import Learner
from benchmarks.runner.rows import Scores
from benchmarks.width.cifar_models import load
from prunerecover.callbacks.ledger.ledger import Ledger


@dataclass(frozen=True)
class Subject:
    """Network to prune and to train.

    Attributes:
        text: Description of the removal, the training and the scores.
        dense: Function that loads the network.
        loader: Function from a seed to the training batches.
        loss: Loss of a network on a batch.
        optimizer: Maker of an optimizer of parameters at a rate.
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
    optimizer: Callable[..., Optimizer]
    scores: Callable[[nn.Module], Scores]
    rates: tuple[float, ...]
    scale: float = 100
    digits: int = 1
    mirrored: bool = True
    settings: Any = None

    def loss_of(self, network: nn.Module, batch: list[Tensor]) -> Tensor:
        """Return the loss of a training batch, mirrored at random."""
        first, *rest = batch
        mirrored = self.mirrored and first.ndim == 4 and bool(torch.rand(()) < 0.5)
        return self.loss(network, [first.flip(3) if mirrored else first, *rest])


def resnet(model: str, **more: Any) -> Subject:
    """Return a ResNet of CIFAR-10 under SGD, with further entries."""
    sgd = partial(SGD, momentum=0.9, weight_decay=5e-4)
    return Subject(dense=partial(load, model), loss=cifar.cross_entropy, optimizer=sgd, **more)


def deit(tested: int, **more: Any) -> Subject:
    """Return DeiT-Tiny on tiny_imagenet's 200 classes under AdamW, with further entries."""
    return Subject(
        dense=lambda: tiny_imagenet.unfused(deit_tiny()),
        loss=tiny_imagenet.loss,
        scores=lambda network: tiny_imagenet.hits(network, tiny_imagenet.validation(tested)),
        settings=tiny_imagenet.PRECISION,
        **{"optimizer": partial(AdamW, weight_decay=0.05), **more},
    )


def fit(subject: Subject, rate: float, epochs: int, seed: int, callbacks: Iterable[pl.Callback]) -> nn.Module:
    """Train a subject's network at a constant rate on a core, and return it, with adapters merged.

    Args:
        subject: Network and its data.
        rate: Learning rate.
        epochs: Number of epochs.
        seed: Seed of everything random in the fit.
        callbacks: Callbacks of the Trainer.
    """
    with isolate_rng():
        pl.seed_everything(seed, verbose=False)
        module = Learner(subject.dense().train(), subject.loss_of, partial(subject.optimizer, lr=rate))
        fits.fit(module, subject.loader(seed), callbacks, max_epochs=epochs, **(subject.settings or {}))
    return Ledger.of(module).plain_copy(module, "model").eval()


def shuffled(data: tuple[Tensor, ...], size: int, seed: int | None = None) -> DataLoader[Any]:
    """Return data in batches, reshuffled each epoch, by a separate seed if given."""
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    return DataLoader(TensorDataset(*data), size, shuffle=True, generator=generator)
