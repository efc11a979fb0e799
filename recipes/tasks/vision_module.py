"""The base of the image recipes: evaluation with torchmetrics, and AdamW under a cosine."""

from __future__ import annotations

from abc import abstractmethod

import lightning.pytorch as pl
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn
from torchmetrics import MetricCollection

from prunerecover.recipes.tasks.optimization import adamw_with_cosine

Batch = tuple[Tensor, Tensor]


class VisionModule(pl.LightningModule):
    """Logs a loss and metrics in validation and test, and trains one network.

    Subclasses set `val_metrics` and `test_metrics`.

    Args:
        learning_rate: Peak learning rate of AdamW.
        weight_decay: Weight decay of parameters with two or more dimensions.
        warmup_epochs: Length of the linear warmup, in epochs; may be a fraction.
        min_learning_rate: Where the cosine ends.
    """

    val_metrics: MetricCollection
    test_metrics: MetricCollection

    def __init__(
        self, learning_rate: float, weight_decay: float, warmup_epochs: float, min_learning_rate: float
    ) -> None:
        super().__init__()
        self.learning_rate, self.weight_decay = learning_rate, weight_decay
        self.warmup_epochs, self.min_learning_rate = warmup_epochs, min_learning_rate

    @property
    @abstractmethod
    def trained(self) -> nn.Module:
        """The network that the optimizer trains."""

    @abstractmethod
    def loss_of(self, scores: Tensor, target: Tensor) -> Tensor:
        """Return the loss that validation and test report."""

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Log the loss and the metrics, with the prefix `val_`."""
        self._evaluate(batch, "val_loss", self.val_metrics)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Log the loss and the metrics, with the prefix `test_`."""
        self._evaluate(batch, "test_loss", self.test_metrics)

    def _evaluate(self, batch: Batch, loss_name: str, metrics: MetricCollection) -> None:
        images, target = batch
        scores = self(images)
        metrics.update(scores, target)
        self.log(loss_name, self.loss_of(scores, target), batch_size=len(images))
        self.log_dict(metrics, prog_bar=True, batch_size=len(images))

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """AdamW under a cosine; see `optimization`."""
        return adamw_with_cosine(
            self, self.trained, self.learning_rate, self.weight_decay, self.warmup_epochs, self.min_learning_rate
        )
