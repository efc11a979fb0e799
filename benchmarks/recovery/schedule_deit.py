"""DeiT-Tiny in the benchmark of learning rates after surgery: pruned by its latency, one epoch of tiny_imagenet."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.data import tiny_imagenet
from benchmarks.data.real import autocast, deit_tiny, image_data, kept_plan
from benchmarks.recovery.schedule_subjects import CALIBRATION, PLANS, Hits, Subject, fitted
from prunerecover import Budget, Plan, Prune, plan_pruning

PLANNED_ON, TRAINED, HELD_OUT, TESTED = 64, 1000, 1500, 1500
RATES = (2e-5, 1e-4, 5e-4)


class Classifier(pl.LightningModule):
    """Real DeiT-Tiny on 200 classes, trained at a constant rate."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.net, self.rate = tiny_imagenet.unfused(deit_tiny()).train(), rate

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        """Return the loss."""
        return F.cross_entropy(self.net(batch[0])[:, tiny_imagenet.classes()], batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return AdamW at a constant rate."""
        return torch.optim.AdamW(self.parameters(), self.rate, weight_decay=0.05)


@cache
def plan(share: float) -> Plan:
    """Return what goes of the latency, decided on training images; made once."""

    def made() -> Plan:
        network, batches = tiny_imagenet.unfused(deit_tiny()), tiny_imagenet.calibration(PLANNED_ON)
        with autocast():
            return plan_pruning(network, Budget(latency=share), batches=batches, loss=tiny_imagenet.loss)

    return kept_plan(PLANS / f"deit_{round(100 * share)}_of_latency.json", made)


def recovered(share: float, seed: int, rate: float, schedules: Sequence[pl.Callback]) -> nn.Module:
    """Prune and train in one fit, and return the network."""
    source = tiny_imagenet.data(TRAINED, num_workers=0)
    source.setup("fit")
    surgeon = Prune(plan=plan(share), calibration=CALIBRATION, merge="never", seed=seed)
    settings: dict[str, Any] = {"max_epochs": 1, **tiny_imagenet.PRECISION}
    made = fitted(lambda: Classifier(rate), source.train_dataloader(), [surgeon, *schedules], seed, **settings)
    network: nn.Module = made.net
    return network.eval()


def held_out(network: nn.Module, seed: int) -> Hits:
    """Return whether the network is right, per training image that nothing was trained or planned on."""
    source = tiny_imagenet.data(TRAINED, HELD_OUT, batch_size=50, num_workers=0)
    source.setup("fit")
    return tiny_imagenet.hits(network, source.val_dataloader())


def tested(network: nn.Module) -> Hits:
    """Return whether the network is right, per one of some validation images."""
    source = image_data("tiny_imagenet", batch_size=50, num_workers=0, limit_val=TESTED)
    source.setup("validate")
    return tiny_imagenet.hits(network, source.val_dataloader())


def deit(share: float) -> Subject:
    """Return DeiT-Tiny without a share of its latency."""
    return Subject(
        f"DeiT-Tiny, {share:.0%} of the latency",
        f"DeiT-Tiny without {share:.0%} of its latency by `Prune`, planned on {PLANNED_ON} images, then one epoch of "
        f"{TRAINED:,} images of tiny_imagenet: AdamW, weight decay 0.05, batches of 16, augmented. Top-1 in percent on "
        f"{TESTED:,} validation images.",
        RATES,
        partial(recovered, share),
        held_out,
        tested,
    )
