"""The model of a transformers Trainer as a LightningModule, whose training step returns the Trainer's loss."""

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
    """What the Trainer computes the loss of.

    Attributes:
        inputs: Batch, on its device.
        model: Model, as it is wrapped for training.
        items: Number of items in all batches of the optimizer step; None: it is not counted.
        parts: Number of such batches, where the loss is divided by it or by their items already.
    """

    inputs: Any
    model: nn.Module
    items: Any = None
    parts: int = 1


class TrainedModel(pl.LightningModule):
    """The model, as "model".

    Args:
        trainer: Trainer that holds it.
    """

    def __init__(self, trainer: Any) -> None:
        super().__init__()
        self.owner, self.model = trainer, trainer.model
        self.noted: dict[str, list[float | Tensor]] = {}

    def training_step(self, batch: Any) -> Tensor:
        """Return the mean loss of a batch, as the Trainer's class computes it.

        Args:
            batch: `MicroBatch` of a step, or a batch of the loader, on its device.
        """
        if not isinstance(batch, MicroBatch):
            batch = MicroBatch(batch, self.model)
        inputs = {**batch.inputs} if isinstance(batch.inputs, Mapping) else batch.inputs  # the Trainer takes labels out
        loss: Tensor = self.owner.own_loss(batch.model, inputs, batch.items)
        return loss * batch.parts if batch.parts > 1 else loss

    def log(self, name: str, value: Any, **settings: Any) -> None:  # type: ignore[override]
        """Note a value, which the Trainer logs beside the loss."""
        self.noted.setdefault(name, []).append(value)

    def take_noted(self) -> dict[str, float]:
        """Return the means of what was noted, and forget it."""
        taken, self.noted = self.noted, {}
        return {name: sum(map(float, values)) / len(values) for name, values in taken.items()}

    def optimizers(self, use_pl_optimizer: bool = True) -> Any:
        """Return the optimizers, as they are."""
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
