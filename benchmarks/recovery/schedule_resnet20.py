"""ResNet-20 in the benchmark of learning rates after surgery: half of its MACs out in width, two epochs of CIFAR-10."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.data.cifar import hits, scored_images, training_images
from benchmarks.data.real import kept_plan
from benchmarks.recovery.schedule_subjects import CALIBRATION, PLANS, Hits, Subject, fitted
from benchmarks.width.cifar_models import load
from prunerecover import Budget, Plan, WidthPrune, plan_width

TRAINED, HELD_OUT, BATCH, EPOCHS = 6000, 2000, 50, 2
NOTED, EVERY = 1000, 10  # test images that a curve is of, and steps from one of its points to the next


class Classifier(pl.LightningModule):
    """Real ResNet-20, trained at a constant rate."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.net, self.rate = load("ResNet-20").train(), rate

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        """Return the loss, with half of the batches mirrored."""
        images, labels = batch
        return F.cross_entropy(self.net(images.flip(3) if torch.rand(()) < 0.5 else images), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return SGD at a constant rate."""
        return torch.optim.SGD(self.parameters(), self.rate, momentum=0.9, weight_decay=5e-4)


@cache
def plan(seed: int) -> Plan:
    """Return what goes, scored on training images."""
    images, labels = (tensor[:CALIBRATION].split(64) for tensor in training_images(TRAINED + HELD_OUT, seed))
    batches = list(zip(images, labels, strict=True))
    return kept_plan(
        PLANS / f"{seed}.json", lambda: plan_width(load("ResNet-20"), Budget(macs=0.5), batches=batches, seed=seed)
    )


def recovered(seed: int, rate: float, schedules: Sequence[pl.Callback]) -> nn.Module:
    """Prune and train in one fit, and return the network."""
    images, labels = training_images(TRAINED + HELD_OUT, seed)
    data = DataLoader(TensorDataset(images[:TRAINED], labels[:TRAINED]), BATCH, shuffle=True)
    surgeon = WidthPrune(plan=plan(seed), calibration=CALIBRATION, merge="never", seed=seed)
    network: nn.Module = fitted(lambda: Classifier(rate), data, [surgeon, *schedules], seed, max_epochs=EPOCHS).net
    return network.eval()


def held_out(network: nn.Module, seed: int) -> Hits:
    """Return whether the network is right, per training image that it was not trained on."""
    images, labels = (tensor[TRAINED:] for tensor in training_images(TRAINED + HELD_OUT, seed))
    with torch.inference_mode():
        predicted = torch.cat([network(batch).argmax(1) for batch in images.split(100)])
    return predicted.eq(labels).double().numpy()


class Curve(pl.Callback):
    """Notes top-1 on the first test images, in percent, every few steps.

    Attributes:
        points: Steps done, and top-1.
    """

    def __init__(self) -> None:
        self.points: list[tuple[int, float]] = []

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: list[Tensor], batch_idx: int
    ) -> None:
        """Note a point before a step."""
        if trainer.global_step % EVERY == 0:
            self._note(trainer, pl_module)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Note the last point."""
        self._note(trainer, pl_module)

    def _note(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        images, labels = (tensor[:NOTED] for tensor in scored_images("cifar10"))
        network = pl_module.net.eval()  # type: ignore[union-attr]
        with torch.no_grad():
            right = [network(batch).argmax(1) for batch in images.split(100)]  # type: ignore[operator]
        network.train()
        self.points.append((trainer.global_step, round(100 * torch.cat(right).eq(labels).double().mean().item(), 2)))


RESNET20 = Subject(
    "ResNet-20",
    f"ResNet-20 without half of its MACs in width, reconstructed, then {EPOCHS} epochs of {TRAINED:,} JPEGs of "
    "CIFAR-10: SGD with momentum 0.9 and weight decay 0.0005, batches of 50, half of them mirrored. Top-1 in percent "
    "on all 10,000 test JPEGs (dense, without this training: 81.0).",
    (0.005, 0.02, 0.05),
    recovered,
    held_out,
    hits,
)
