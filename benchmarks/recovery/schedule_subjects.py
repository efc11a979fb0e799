"""Subjects of the benchmark of learning rates after surgery: ResNet-20 in width, DeiT-Tiny by its latency."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn

from benchmarks.data import cifar, tiny_imagenet
from benchmarks.data.real import autocast, deit_tiny
from benchmarks.recovery.fits import Subject, deit, resnet, shuffled
from benchmarks.runner.plans import saved_plan
from benchmarks.runner.rows import CHECKPOINTS, Scores
from benchmarks.width.cifar_models import load
from prunerecover import Budget, Plan, Prune, WidthPrune, plan_pruning, plan_width

PLANS, CALIBRATION = CHECKPOINTS / "recovery_schedule", 256
TRAINED, HELD_OUT = {"resnet20": 6000, "deit": 1000}, {"resnet20": 2000, "deit": 1500}
PLANNED_ON, TESTED = 64, 1500  # images of DeiT-Tiny
NOTED, EVERY = 1000, 10  # test images of a curve, and steps between points


@dataclass(frozen=True)
class Scheduled:
    """Subject with its surgery.

    Attributes:
        subject: Network and its data.
        epochs: Epochs after the surgery.
        surgeon: Maker of the pruning callback for a seed.
        held_out: Function from a network and a seed to the scores on training images outside planning and training.
    """

    subject: Subject
    epochs: int
    surgeon: Callable[[int], pl.Callback]
    held_out: Callable[[nn.Module, int], Scores]


class Curve(pl.Callback):
    """Top-1 on the first test images, in percent, every few steps.

    Attributes:
        points: Steps done, and top-1.
    """

    def __init__(self) -> None:
        self.points: list[tuple[int, float]] = []

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: Any, batch: list[Tensor], batch_idx: int) -> None:
        """Note a point before a step."""
        if trainer.global_step % EVERY == 0:
            self.on_train_end(trainer, pl_module)

    def on_train_end(self, trainer: pl.Trainer, pl_module: Any) -> None:
        """Append the last point."""
        images, labels = (tensor[:NOTED] for tensor in cifar.scored_images("cifar10"))
        with torch.no_grad():
            right = torch.cat([pl_module.model.eval()(batch).argmax(1) for batch in images.split(100)]).eq(labels)
        pl_module.model.train()
        self.points.append((trainer.global_step, round(100 * right.double().mean().item(), 2)))


def _images(seed: int, part: slice) -> tuple[Tensor, Tensor]:
    pixels, labels = cifar.training_images(TRAINED["resnet20"] + HELD_OUT["resnet20"], seed)
    return pixels[part], labels[part]


def _narrow(seed: int) -> pl.Callback:
    batches = cifar.batches(CALIBRATION, seed, 64)
    make = partial(plan_width, load("ResNet-20"), Budget(macs=0.5), batches=batches, seed=seed)
    return WidthPrune(plan=saved_plan(str(seed), make, PLANS), calibration=CALIBRATION, merge="never", seed=seed)


def _resnet_held_out(network: nn.Module, seed: int) -> Scores:
    return cifar.right(network, *_images(seed, slice(TRAINED["resnet20"], None)))


def _deit_plan(share: float) -> Plan:
    batches = tiny_imagenet.calibration(PLANNED_ON)
    with autocast():
        network = tiny_imagenet.unfused(deit_tiny())
        return plan_pruning(network, Budget(latency=share), batches=batches, loss=tiny_imagenet.loss)


def _prune(share: float, seed: int) -> pl.Callback:
    plan = saved_plan(f"deit_{round(100 * share)}_of_latency", partial(_deit_plan, share), PLANS)
    return Prune(plan=plan, calibration=CALIBRATION, merge="never", seed=seed)


def _deit_loader(split: str, **how: Any) -> Any:
    source = tiny_imagenet.data(TRAINED["deit"], num_workers=0, **how)
    source.setup("fit")
    return source.train_dataloader() if split == "train" else source.val_dataloader()


def _deit_held_out(network: nn.Module, seed: int) -> Scores:
    return tiny_imagenet.hits(network, _deit_loader("val", limit_held_out=HELD_OUT["deit"], batch_size=50))


def _of_latency(share: float) -> Scheduled:
    text = f"""DeiT-Tiny without {share:.0%} of its latency by `Prune`, planned on {PLANNED_ON} images, then one epoch
    of {TRAINED["deit"]:,} images of tiny_imagenet: AdamW, weight decay 0.05, batches of 16, augmented. Top-1 in percent
    on {TESTED:,} validation images."""
    subject = deit(
        TESTED,
        text=" ".join(text.split()),
        loader=lambda seed: _deit_loader("train"),
        rates=(2e-5, 1e-4, 5e-4),
        mirrored=False,
    )
    return Scheduled(subject, 1, partial(_prune, share), _deit_held_out)


RESNET20 = resnet(
    "ResNet-20",
    text="ResNet-20 without half of its MACs in width, reconstructed, then 2 epochs of 6,000 JPEGs of CIFAR-10: SGD "
    "with momentum 0.9 and weight decay 0.0005, batches of 50, half of them mirrored. Top-1 in percent on all 10,000 "
    "test JPEGs (dense, without this training: 81.0).",
    loader=lambda seed: shuffled(_images(seed, slice(TRAINED["resnet20"])), 50),
    scores=cifar.hits,
    rates=(0.005, 0.02, 0.05),
)
SUBJECTS = {
    "resnet20": Scheduled(RESNET20, 2, _narrow, _resnet_held_out),
    "deit_33": _of_latency(0.33),
    "deit_50": _of_latency(0.5),
}
