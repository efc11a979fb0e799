"""Bases of the recipes' modules: AdamW under a cosine with linear warmup, one evaluation for validation and test.

The optimizer and its schedule are as in DeiT (arXiv 2012.12877).

Metrics and losses cover all samples, each counted once, on any number of processes. Lightning deals the samples of a
loader out in turn, equally many to all processes: if the turns are uneven, the last processes repeat some of the first
samples (`torch.utils.data.DistributedSampler` pads). Metrics without the repeated samples equal those of a single
process. All processes still run all batches, as DDP needs.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler, SequentialLR
from torch.utils._pytree import tree_leaves
from torch.utils.data import DistributedSampler
from torchmetrics import MeanMetric, Metric, MetricCollection

Batch = tuple[Tensor, Tensor]


class EvaluatedModule(pl.LightningModule):
    """Base that trains a network, and evaluates alike in validation and test.

    Args:
        learning_rate: Peak learning rate of AdamW.
        weight_decay: Weight decay of parameters with two or more dimensions.
        warmup_epochs: Length of the linear warmup, in epochs; may be a fraction.
        min_learning_rate: Learning rate at the end of the cosine.
        layer_decay: Ratio of each layer's learning rate to the rate of the next layer; None: equal rates.

    Attributes:
        trained: Name of the network that the optimizer trains.
    """

    trained = "model"

    def __init__(
        self,
        learning_rate: float,
        weight_decay: float,
        warmup_epochs: float,
        min_learning_rate: float,
        layer_decay: float | None = None,
    ) -> None:
        super().__init__()
        self.learning_rate, self.weight_decay, self.layer_decay = learning_rate, weight_decay, layer_decay
        self.warmup_epochs, self.min_learning_rate = warmup_epochs, min_learning_rate

    @abstractmethod
    def evaluate(self, batch: Any, stage: str, where: tuple[int, int]) -> None:
        """Add a batch to the metrics, and log the metrics.

        Args:
            batch: Batch of the loader.
            stage: Prefix of the logged names, "val" or "test".
            where: Number of the batch, and of the loader.
        """

    def counted(self, size: int, where: tuple[int, int]) -> int:
        """Return the number of samples of a batch to count in this process; see `counted`."""
        return counted(self.trainer, where[0], size, where[1])

    def on_validation_epoch_start(self) -> None:
        """Reset the sums: `validate` leaves inference tensors, which cannot be added to in a fit."""
        self._start("val_")

    def on_test_epoch_start(self) -> None:
        """Reset the sums, as in validation."""
        self._start("test_")

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Log loss and metrics, with the prefix `val_`."""
        self.evaluate(batch, "val", (batch_idx, dataloader_idx))

    def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Log loss and metrics, with the prefix `test_`."""
        self.evaluate(batch, "test", (batch_idx, dataloader_idx))

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """Return AdamW and its schedule per step; the cosine ends no higher than the lowest learning rate of a layer.

        Raises:
            ValueError: If the trainer has neither `max_epochs` nor `max_steps`, or `layer_decay` is not in (0, 1].
        """
        network = self.get_submodule(self.trained)
        groups = parameter_groups(network, self.learning_rate, self.weight_decay, self.layer_decay)
        optimizer = torch.optim.AdamW(groups, lr=self.learning_rate)
        steps = self.trainer.estimated_stepping_batches
        if not isinstance(steps, int):
            raise ValueError(
                "Expected a training run with an end, for the cosine schedule, but the trainer has none. "
                "Set max_epochs or max_steps."
            )
        epochs = max(self.trainer.max_epochs or 1, 1)
        warmup = min(round(self.warmup_epochs * steps / epochs), steps - 1)
        minimum = min(self.min_learning_rate, *(group["lr"] for group in optimizer.param_groups))
        scheduler = cosine_with_warmup(optimizer, warmup, steps, minimum)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def _start(self, prefix: str) -> None:
        for name, child in self.named_children():
            if name.startswith(prefix) and isinstance(child, Metric | MetricCollection):
                child.reset()


class VisionModule(EvaluatedModule):
    """Base with a loss and metrics in validation and test.

    Subclasses set `val_metrics` and `test_metrics`.

    Args:
        arguments: Arguments of `EvaluatedModule`.
    """

    val_metrics: MetricCollection
    test_metrics: MetricCollection

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.val_loss, self.test_loss = MeanMetric(nan_strategy="ignore"), MeanMetric(nan_strategy="ignore")

    @abstractmethod
    def loss_of(self, scores: Tensor, target: Tensor) -> Tensor:
        """Return the loss for validation and test, a mean over the scored targets."""

    def scored(self, target: Tensor) -> int:
        """Return the number of targets in the mean of the loss."""
        return len(target)

    def evaluate(self, batch: Batch, stage: str, where: tuple[int, int]) -> None:
        """Score the counted samples of a batch; the network runs on all samples."""
        images, target = batch
        count = self.counted(len(images), where)
        scores = self(images)[:count]
        target = target[:count]
        loss: MeanMetric = getattr(self, f"{stage}_loss")
        metrics: MetricCollection = getattr(self, f"{stage}_metrics")
        if count:
            self.update_metrics(metrics, scores, target)
            loss.update(self.loss_of(scores, target), self.scored(target))
        self.log(f"{stage}_loss", loss, batch_size=len(images))
        self.log_dict(metrics, prog_bar=True, batch_size=len(images))

    def update_metrics(self, metrics: MetricCollection, scores: Tensor, target: Tensor) -> None:
        """Add scored samples to the metrics."""
        metrics.update(scores, target)


def parameter_groups(
    network: nn.Module, learning_rate: float, weight_decay: float, layer_decay: float | None
) -> list[dict[str, Any]]:
    """Return groups of parameters for AdamW, without weight decay on vectors.

    Args:
        network: Network to train.
        learning_rate: Learning rate of the last layer.
        weight_decay: Weight decay of parameters with two or more dimensions.
        layer_decay: Ratio of each layer's learning rate to the rate of the next layer; None: equal rates.

    Raises:
        ValueError: If `layer_decay` is not in (0, 1].
    """
    from timm.optim import param_groups_layer_decay, param_groups_weight_decay

    skip: Any = network.no_weight_decay() if hasattr(network, "no_weight_decay") else ()  # type: ignore[operator]
    if layer_decay is None:
        return param_groups_weight_decay(network, weight_decay, no_weight_decay_list=skip)  # type: ignore[no-any-return]
    if not 0 < layer_decay <= 1:
        raise ValueError(f"Expected layer_decay to be in (0, 1], but got {layer_decay}. 0.75 is usual.")
    groups = param_groups_layer_decay(network, weight_decay, no_weight_decay_list=skip, layer_decay=layer_decay)
    return [  # torch's schedules know no scale, and multiply each group's own rate
        {"params": group["params"], "weight_decay": group["weight_decay"], "lr": learning_rate * group["lr_scale"]}
        for group in groups
    ]


def cosine_with_warmup(optimizer: torch.optim.Optimizer, warmup: int, steps: int, minimum: float) -> LRScheduler:
    """Return the schedule of the learning rates, for each step.

    Args:
        optimizer: Optimizer with the rates at the end of the warmup.
        warmup: Steps of the linear warmup.
        steps: Steps in all.
        minimum: Learning rate at the end of the cosine.
    """
    cosine = CosineAnnealingLR(optimizer, T_max=max(steps - warmup, 1), eta_min=minimum)
    if warmup < 1:
        return cosine
    ramp = LinearLR(optimizer, start_factor=1 / (warmup + 1), total_iters=warmup)
    return SequentialLR(optimizer, [ramp, cosine], milestones=[warmup])


def counted(trainer: pl.Trainer, batch_idx: int, size: int, dataloader_idx: int = 0) -> int:
    """Return the number of samples of a batch to count here; the rest are repeated, and counted elsewhere.

    Args:
        trainer: Trainer in validation or test.
        batch_idx: Number of the batch in its loader.
        size: Number of samples in the batch.
        dataloader_idx: Number of the loader.
    """
    loader: Any = tree_leaves(trainer.test_dataloaders if trainer.testing else trainer.val_dataloaders)[dataloader_idx]
    batches = getattr(loader, "batch_sampler", None)
    sampler = getattr(batches, "sampler", None)
    if not isinstance(sampler, DistributedSampler) or sampler.drop_last:
        return size
    first, samples = batch_idx * batches.batch_size, len(sampler.dataset)  # type: ignore[arg-type, union-attr]
    return sum(sampler.rank + i * sampler.num_replicas < samples for i in range(first, first + size))
