"""Model of a transformers Trainer as a LightningModule, with a training step that returns the Trainer's loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from prunerecover.model.evaluation import device_of


@dataclass(frozen=True)
class MicroBatch:
    """Batch of one call of the Trainer's loss.

    Attributes:
        inputs: Batch, on its device.
        model: Model, wrapped for training.
        items: Number of items in all batches of the optimizer step; None: not counted.
        parts: Number of batches in the optimizer step, if the loss is already divided by the number or by the items.
    """

    inputs: Any
    model: nn.Module
    items: Any = None
    parts: int = 1


class TrainedModel(pl.LightningModule):
    """LightningModule with the model as its child "model".

    Args:
        trainer: Trainer of the model.
    """

    def __init__(self, trainer: Any) -> None:
        super().__init__()
        self.owner, self.model = trainer, trainer.model
        self.noted: dict[str, list[float | Tensor]] = {}

    def training_step(self, batch: Any) -> Tensor:
        """Return the mean loss of a batch, computed by the Trainer's class.

        Args:
            batch: `MicroBatch` of a step, or a batch of the loader, on its device.
        """
        if not isinstance(batch, MicroBatch):
            batch = MicroBatch(batch, self.model)
        inputs = {**batch.inputs} if isinstance(batch.inputs, Mapping) else batch.inputs  # the Trainer pops labels
        loss: Tensor = self.owner.own_loss(batch.model, inputs, batch.items)
        return loss * batch.parts if batch.parts > 1 else loss

    def log(self, name: str, value: Any, **settings: Any) -> None:  # type: ignore[override]
        """Note a value for the Trainer to log beside the loss."""
        self.noted.setdefault(name, []).append(value)

    def take_noted(self) -> dict[str, float]:
        """Return the means of the noted values, and forget the values."""
        taken, self.noted = self.noted, {}
        return {name: sum(map(float, values)) / len(values) for name, values in taken.items()}

    def optimizers(self, use_pl_optimizer: bool = True) -> Any:
        """Return the optimizers."""
        return self._trainer.optimizers if self._trainer is not None else []

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return device_of(self.model)

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: Any = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        """Clip the norm of all gradients."""
        if gradient_clip_val:
            clip_grad_norm_(self.model.parameters(), gradient_clip_val)

    def _on_before_batch_transfer(self, batch: Any, dataloader_idx: int = 0) -> Any:
        return batch
