"""Modules, data and trainers of the tests of WidthPrune."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from cases.models.tiny import plain_vit
from cases.trainers import trainer_of
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from prunerecover import Budget
from prunerecover.callbacks import WidthPrune
from prunerecover.cost.macs import count_macs
from prunerecover.recipes.networks.cifar_resnet import CifarResNet

IMAGE = torch.zeros(1, 3, 16, 16)
HALF = Budget(macs=0.5)


class Classifier(pl.LightningModule):
    """Ordinary module around a network."""

    def __init__(self, network: str | nn.Module = "cnn") -> None:
        super().__init__()
        torch.manual_seed(0)
        named = {"cnn": lambda: CifarResNet(blocks=1, num_classes=4), "vit": vit}
        self.net = network if isinstance(network, nn.Module) else named[network]()

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.log("val_loss", F.cross_entropy(self.net(batch[0]), batch[1]))

    test_step = validation_step

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), 0.05, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)]


def vit() -> nn.Module:
    return plain_vit(depth=3)


def rows(shuffle: bool = True) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(48) % 4
    images = torch.randn(48, 3, 16, 16, generator=generator) + labels.view(-1, 1, 1, 1)
    return DataLoader(TensorDataset(images, labels), batch_size=12, shuffle=shuffle)


def trainer(folder: Path, *callbacks: pl.Callback, epochs: int = 3, **settings: Any) -> pl.Trainer:
    keep = ModelCheckpoint(dirpath=folder / "files", filename="{epoch}", save_top_k=-1, save_last=True)
    return trainer_of(folder, *callbacks, keep, epochs=epochs, **settings)


def fit(folder: Path, *callbacks: pl.Callback, network: str = "cnn", ckpt: Any = None, **settings: Any) -> Classifier:
    pl.seed_everything(1, verbose=False)
    module = Classifier(network)
    trainer(folder, *callbacks, **settings).fit(module, rows(), rows(False), ckpt_path=ckpt, weights_only=False)
    return module


def prune(**arguments: Any) -> WidthPrune:
    return WidthPrune(**{"budget": HALF, "calibration": 24, "schedule": {"start": 1}, **arguments})


def left(module: Classifier) -> float:
    return count_macs(module.net, IMAGE) / count_macs(Classifier().net, IMAGE)


class Direct(Classifier):
    """The layers are the module's own."""

    def __init__(self) -> None:
        pl.LightningModule.__init__(self)
        torch.manual_seed(0)
        self.conv, self.norm, self.head = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 4)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(F.relu(self.norm(self.conv(images))).mean((2, 3)))

    def net(self, images: Tensor) -> Tensor:
        return self(images)
