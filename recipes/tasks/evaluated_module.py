"""The base of all recipes' modules: AdamW under a cosine, and an evaluation that validation and test share.

Metrics and losses are those of all samples, each counted once, on however many processes (see `counted_once`).
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import nn
from torchmetrics import Metric, MetricCollection

from prunerecover.recipes.tasks.counted_once import counted
from prunerecover.recipes.tasks.optimization import adamw_with_cosine


class EvaluatedModule(pl.LightningModule):
    """Trains one network, and evaluates it alike in validation and test.

    Args:
        learning_rate: Peak learning rate of AdamW.
        weight_decay: Weight decay of parameters with two or more dimensions.
        warmup_epochs: Length of the linear warmup, in epochs; may be a fraction.
        min_learning_rate: Where the cosine ends.
        layer_decay: Each layer learns at this share of the rate of the layer after it; None: all at the same.
    """

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

    @property
    @abstractmethod
    def trained(self) -> nn.Module:
        """The network that the optimizer trains."""

    @abstractmethod
    def evaluate(self, batch: Any, stage: str, where: tuple[int, int]) -> None:
        """Log what a batch adds, and the metrics.

        Args:
            batch: Batch of the loader.
            stage: "val" or "test", the prefix of what is logged.
            where: Number of the batch, and of the loader.
        """

    def counted(self, size: int, where: tuple[int, int]) -> int:
        """Return how many samples of a batch of some size count in this process; see `counted_once`."""
        return counted(self.trainer, where[0], size, where[1])

    def on_validation_epoch_start(self) -> None:
        """Start the sums anew: those that `validate` leaves are inference tensors, which a fit cannot add to."""
        self._start("val_")

    def on_test_epoch_start(self) -> None:
        """Start the sums anew, as in validation."""
        self._start("test_")

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Log loss and metrics, with the prefix `val_`."""
        self.evaluate(batch, "val", (batch_idx, dataloader_idx))

    def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Log loss and metrics, with the prefix `test_`."""
        self.evaluate(batch, "test", (batch_idx, dataloader_idx))

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """AdamW under a cosine; see `optimization`."""
        rates = (self.learning_rate, self.weight_decay, self.warmup_epochs, self.min_learning_rate, self.layer_decay)
        return adamw_with_cosine(self, self.trained, *rates)

    def _start(self, prefix: str) -> None:
        for name, child in self.named_children():
            if name.startswith(prefix) and isinstance(child, Metric | MetricCollection):
                child.reset()
