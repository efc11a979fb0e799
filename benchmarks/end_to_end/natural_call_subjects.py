"""Subjects of `natural_call.py`, in LightningModules like a user's: DeiT-Tiny and ResNet-56."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from numpy.typing import NDArray
from timm.models.vision_transformer import Block
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.data import cifar, tiny_imagenet
from benchmarks.data.real import deit_tiny
from benchmarks.width.cifar_models import load
from prunerecover.recipes.networks.cifar_resnet import BasicBlock

IMAGES = {"deit_tiny": 1000, "resnet56": 5000}  # images of the recovery's only epoch


@dataclass(frozen=True)
class Subject:
    """Network with its data and scores.

    Attributes:
        dense: Function that loads the network.
        module: Maker of the LightningModule around the network and of its training loader, from a seed.
        hits: Function from a network to the hits on the test images.
        block: Class of the blocks for counts of passes.
        target: Path of the network in the module.
        example: Batch for latency.
        precision: Precision of the Trainer.
    """

    dense: Callable[[], nn.Module]
    module: Callable[[nn.Module, int], tuple[pl.LightningModule, Any]]
    hits: Callable[[nn.Module], NDArray[np.float64]]
    block: type[nn.Module]
    target: str
    example: Tensor
    precision: dict[str, Any]


class Cifar(pl.LightningModule):
    """An ordinary module around a network for CIFAR-10: SGD with momentum under a one-epoch cosine, crops and flips."""

    def __init__(self, network: nn.Module, seed: int) -> None:
        super().__init__()
        self.model, self.generator = network, torch.Generator().manual_seed(seed)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Return the cross-entropy of augmented images."""
        images = cifar.augmented(batch[0], self.generator) if self.training else batch[0]
        return F.cross_entropy(self.model(images), batch[1])

    def configure_optimizers(self) -> Any:
        """Return the optimizer and the schedule over steps."""
        settings: dict[str, Any] = {"momentum": 0.9, "weight_decay": 5e-4, "nesterov": True}
        optimizer = torch.optim.SGD(self.parameters(), cifar.LEARNING_RATE, **settings)
        steps = int(self.trainer.estimated_stepping_batches)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


def _cifar(network: nn.Module, seed: int) -> tuple[pl.LightningModule, Any]:
    data = TensorDataset(*cifar.training_images(IMAGES["resnet56"], seed))
    generator = torch.Generator().manual_seed(seed)
    return Cifar(network.train(), seed), DataLoader(data, cifar.BATCH, shuffle=True, generator=generator)


def _deit_tiny() -> nn.Module:
    """Load DeiT-Tiny with unfused attention, for planning, training and latency alike."""
    return tiny_imagenet.unfused(deit_tiny())


def _tiny_imagenet(network: nn.Module, seed: int) -> tuple[pl.LightningModule, Any]:
    source = tiny_imagenet.data(IMAGES["deit_tiny"])
    source.setup("fit")
    return tiny_imagenet.module(network.train()), source.train_dataloader()


SUBJECTS = {
    "deit_tiny": Subject(
        _deit_tiny,
        _tiny_imagenet,
        tiny_imagenet.hits,
        Block,
        "model",
        torch.randn(8, 3, 224, 224, generator=torch.Generator().manual_seed(0)),
        tiny_imagenet.PRECISION,
    ),
    "resnet56": Subject(
        partial(load, "ResNet-56"),
        _cifar,
        cifar.hits,
        BasicBlock,
        "model",
        torch.randn(64, 3, 32, 32, generator=torch.Generator().manual_seed(0)),
        {},
    ),
}
