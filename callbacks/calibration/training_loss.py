"""Losses as functions of a network's captured inputs: that of the training step, and a user's function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import lightning.pytorch as pl
from torch import Tensor, nn

from prunerecover.callbacks.calibration.capture import CapturedInputs, step_arguments, undisturbed
from prunerecover.importance.measuring.losses import Loss


def training_loss(trainer: pl.Trainer, module: pl.LightningModule) -> Callable[[nn.Module, CapturedInputs], Tensor]:
    """Return `loss(network, inputs)`, which runs the module's training step on the batch of the inputs.

    Args:
        trainer: Trainer in a fit; logs and optimizers are not touched.
        module: LightningModule whose training step calls the network.

    The loss raises ValueError under manual optimization, where the step returns no loss.
    """

    def loss(network: nn.Module, inputs: CapturedInputs) -> Tensor:
        if not module.automatic_optimization:
            raise ValueError(
                f"Expected argument loss=f(network, batch), because {type(module).__name__} optimizes manually and "
                "its training step does not return a loss. Or choose units without a loss, by "
                "importance='output_divergence' in depth and 'magnitude' in width."
            )
        with undisturbed(trainer, module), trainer.strategy.precision_plugin.train_step_context():
            output: Any = module.training_step(*step_arguments(module, inputs.batch, inputs.index))
        value: Tensor = output["loss"] if isinstance(output, Mapping) else output
        return value

    return loss


def of_training_batches(loss: Loss) -> Loss:
    """Return a loss of captured inputs that calls `loss(network, batch)` with the batch of the training step."""

    @wraps(loss)
    def of_inputs(network: nn.Module, inputs: CapturedInputs) -> Tensor:
        return loss(network, inputs.batch)

    return of_inputs
