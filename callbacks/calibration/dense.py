"""The dense network of a fit as what is compared with: its BatchNorm statistics are those of its weights."""

from __future__ import annotations

from contextlib import AbstractContextManager

import lightning.pytorch as pl
from torch import Tensor

from prunerecover.callbacks.calibration.capture import capture_inputs
from prunerecover.callbacks.calibration.training_loss import training_loss
from prunerecover.model.paths import get_module, unwrap
from prunerecover.recovery.batchnorm import batchnorms
from prunerecover.recovery.dense_reference import fresh_statistics, holding

SAMPLES = 256


def statistics_in_trainer(
    trainer: pl.Trainer, module: pl.LightningModule, target: str, samples: int = SAMPLES, seed: int = 0
) -> dict[str, Tensor]:
    """Return BatchNorm statistics of the weights of a network in a fit, the same on all ranks; see `fresh_statistics`.

    Args:
        trainer: In a fit.
        module: Whose training step says what the loss is.
        target: Path of the network.
        samples: See `capture_inputs`.
        seed: Of the samples.
    """
    network = unwrap(get_module(module, target))
    if not batchnorms(network):
        return {}
    inputs = capture_inputs(trainer, module, target, samples, seed)
    found = fresh_statistics(network, inputs, training_loss(trainer, module))
    return trainer.strategy.broadcast(found) if trainer.world_size > 1 else found


def as_dense_in_trainer(
    trainer: pl.Trainer, module: pl.LightningModule, target: str, samples: int, seed: int
) -> AbstractContextManager[None]:
    """Have a network in a fit hold these statistics inside a `with` block; arguments as of `statistics_in_trainer`."""
    found = statistics_in_trainer(trainer, module, target, samples, seed)
    return holding(unwrap(get_module(module, target)), found)
