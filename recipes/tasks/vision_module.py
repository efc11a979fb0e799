"""Base of the recipes for images: a loss and metrics of scores."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from torch import Tensor
from torchmetrics import MeanMetric, MetricCollection

from prunerecover.recipes.tasks.evaluated_module import EvaluatedModule

Batch = tuple[Tensor, Tensor]


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
