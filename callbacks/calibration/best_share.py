"""Test of learning rates in the middle of a fit, by the user's own training step and optimizer."""

from __future__ import annotations

from functools import partial
from itertools import cycle, islice

import lightning.pytorch as pl
from torch import Tensor

from prunerecover.callbacks.calibration.capture import CapturedInputs, capture_inputs, undisturbed
from prunerecover.callbacks.calibration.training_loss import training_loss
from prunerecover.callbacks.ledger.random_state import isolated, seed_all
from prunerecover.model.evaluation import uncompiled
from prunerecover.model.paths import get_module, unwrap
from prunerecover.recovery.scaled_steps import STEPS, best_share

SAMPLES = 1024  # at most; with batches above 64, some batches repeat


def best_share_in_trainer(trainer: pl.Trainer, module: pl.LightningModule, target: str) -> float:
    """Return the share of the present learning rates found by `best_share`, the same on all ranks.

    Module, optimizer, fit and random states are restored afterwards.

    Args:
        trainer: Trainer in a fit, before a batch that begins with gradients of zero.
        module: LightningModule with automatic optimization, not sharded.
        target: Path of the pruned network.
    """
    network, step_loss = unwrap(get_module(module, target)), training_loss(trainer, module)
    (optimizer,) = trainer.optimizers
    inputs = capture_inputs(trainer, module, target, SAMPLES, seed=0, most=STEPS)

    def loss(index: int, batch: CapturedInputs) -> Tensor | None:
        seed_all(index)  # the same noise in a step at all rates
        return step_loss(network, batch)

    def clip() -> None:
        with undisturbed(trainer, module):
            module.configure_gradient_clipping(optimizer, trainer.gradient_clip_val, trainer.gradient_clip_algorithm)

    losses = [partial(loss, index, batch) for index, batch in enumerate(islice(cycle(inputs), STEPS))]
    with isolated(), uncompiled():
        found = best_share(module, optimizer, losses, before_step=clip)
    return trainer.strategy.broadcast(found)
