"""Inputs of planning in width inside a Trainer: the user's own training samples, loss and labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import lightning.pytorch as pl
from torch import Tensor, nn

from prunerecover.callbacks.calibration.capture import CapturedInputs, capture_inputs
from prunerecover.callbacks.calibration.training_loss import training_loss
from prunerecover.importance.u_score import labels_in


@dataclass(frozen=True)
class WidthInputs:
    """Arguments of `plan_width` that a Trainer gives, by their names there."""

    batches: list[CapturedInputs]
    loss: Callable[[nn.Module, Any], Tensor]
    labels: Callable[[Any], Tensor]


def width_inputs(
    trainer: pl.Trainer,
    module: pl.LightningModule,
    target: str,
    samples: int,
    seed: int,
    loss: Callable[[nn.Module, Any], Tensor] | None = None,
    labels: Callable[[Any], Tensor] | None = None,
) -> WidthInputs:
    """Collect what the network gets in training steps, what they return, and the classes in their batches.

    Args:
        trainer: In a fit.
        module: Holds the network.
        target: Path of the network.
        samples: See `capture_inputs`.
        seed: Of the samples.
        loss: `loss(network, inputs)`; None: what the training step returns.
        labels: `labels(batch)` of what the training step was given; None: the second element of a tuple, or `labels`
            of a mapping.

    Raises:
        ValueError: See `capture_inputs`.
    """

    def labels_of(inputs: CapturedInputs) -> Tensor:
        return labels(inputs.batch) if labels is not None else labels_in(inputs.batch)

    batches = capture_inputs(trainer, module, target, samples, seed)
    return WidthInputs(batches, loss or training_loss(trainer, module), labels_of)
