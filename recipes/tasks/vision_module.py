"""The base of the image recipes: evaluation with torchmetrics, and AdamW under a cosine.

Metrics and losses are those of all samples, each counted once, on however many processes (see `counted_once`).
"""

from __future__ import annotations

from abc import abstractmethod

import lightning.pytorch as pl
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn
from torchmetrics import MeanMetric, MetricCollection

from prunerecover.recipes.tasks.counted_once import counted
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
        layer_decay: Each layer learns at this share of the rate of the layer after it; None: all at the same.
    """

    val_metrics: MetricCollection
    test_metrics: MetricCollection

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
        self.val_loss = MeanMetric(nan_strategy="ignore")
        self.test_loss = MeanMetric(nan_strategy="ignore")

    @property
    @abstractmethod
    def trained(self) -> nn.Module:
        """The network that the optimizer trains."""

    @abstractmethod
    def loss_of(self, scores: Tensor, target: Tensor) -> Tensor:
        """Return the loss that validation and test report, a mean over what is scored."""

    def scored(self, target: Tensor) -> int:
        """Return over how many targets the loss is a mean."""
        return len(target)

    def on_validation_epoch_start(self) -> None:
        """Start the sums anew: those that `validate` leaves are inference tensors, which a fit cannot add to."""
        self.val_metrics.reset()
        self.val_loss.reset()

    def on_test_epoch_start(self) -> None:
        """Start the sums anew, as in validation."""
        self.test_metrics.reset()
        self.test_loss.reset()

    def validation_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Log the loss and the metrics, with the prefix `val_`."""
        count = counted(self.trainer, batch_idx, len(batch[0]), dataloader_idx)
        self._evaluate(batch, count, "val_loss", self.val_metrics)

    def test_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Log the loss and the metrics, with the prefix `test_`."""
        count = counted(self.trainer, batch_idx, len(batch[0]), dataloader_idx)
        self._evaluate(batch, count, "test_loss", self.test_metrics)

    def _evaluate(self, batch: Batch, count: int, loss_name: str, metrics: MetricCollection) -> None:
        """Score the first `count` samples of a batch; the network sees all of them."""
        images, target = batch
        scores = self(images)[:count]
        target = target[:count]
        loss: MeanMetric = getattr(self, loss_name)
        if count:
            self.update_metrics(metrics, scores, target)
            loss.update(self.loss_of(scores, target), self.scored(target))
        self.log(loss_name, loss, batch_size=len(images))
        self.log_dict(metrics, prog_bar=True, batch_size=len(images))

    def update_metrics(self, metrics: MetricCollection, scores: Tensor, target: Tensor) -> None:
        """Add scored samples to the metrics."""
        metrics.update(scores, target)

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """AdamW under a cosine; see `optimization`."""
        return adamw_with_cosine(
            self,
            self.trained,
            self.learning_rate,
            self.weight_decay,
            self.warmup_epochs,
            self.min_learning_rate,
            self.layer_decay,
        )
