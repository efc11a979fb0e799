"""One surgery on a network in a Trainer: place of the network, and inputs and losses of planning and recovery."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property, partial, wraps
from typing import Any

import lightning.pytorch as pl
from torch import Tensor, nn

from prunerecover.callbacks.calibration.capture import CapturedInputs, capture_inputs, step_arguments, undisturbed
from prunerecover.importance.measuring.drawn import drawn_loss, draws_objects
from prunerecover.importance.measuring.losses import Loss
from prunerecover.model.paths import get_module, unwrap
from prunerecover.recovery.batchnorm import batchnorms
from prunerecover.recovery.dense_reference import fresh_statistics, with_own_statistics
from prunerecover.session.session import Session


class Surgery:
    """Surgery on a network; calibration inputs are captured once, when first read.

    Args:
        trainer: Trainer in a fit.
        module: LightningModule whose training step calls the network.
        target: Path of the network in the module.
        calibration: Number of training samples to capture.
        seed: Seed of the samples, and of all random numbers in planning.
        most: Number of batches to capture at most; None: no limit.
    """

    def __init__(
        self,
        trainer: pl.Trainer,
        module: pl.LightningModule,
        target: str,
        calibration: int,
        seed: int = 0,
        most: int | None = None,
    ) -> None:
        self.trainer, self.module, self.target = trainer, module, target
        self.calibration, self.seed, self.most = calibration, seed, most

    @property
    def network(self) -> nn.Module:
        """Network in its present state, unwrapped."""
        return unwrap(get_module(self.module, self.target))

    @cached_property
    def inputs(self) -> list[CapturedInputs]:
        """Inputs of the network in training steps.

        Raises:
            ValueError: See `capture_inputs`.
        """
        return capture_inputs(self.trainer, self.module, self.target, self.calibration, self.seed, self.most)

    def further(self, samples: int) -> list[CapturedInputs]:
        """Return inputs of further training samples, as many as there are.

        Args:
            samples: Number of samples.
        """
        wanted = self.calibration + samples
        found = capture_inputs(self.trainer, self.module, self.target, wanted, self.seed)
        return found[len(self.inputs) :]

    @cached_property
    def loss(self) -> Loss:
        """Loss of the training step, as a function of inputs."""
        return training_loss(self.trainer, self.module)

    @cached_property
    def statistics(self) -> dict[str, Tensor]:
        """BatchNorm statistics of the network's present weights, the same on all ranks; see `dense_reference`."""
        network = self.network
        if not batchnorms(network):
            return {}
        found = fresh_statistics(network, self.inputs, self.loss)
        return self.trainer.strategy.broadcast(found) if self.trainer.world_size > 1 else found

    @property
    def dense(self) -> nn.Module:
        """Network before removal, with the statistics of `statistics`; any copy shares all other tensors."""
        return with_own_statistics(self.network, self.statistics) if self.statistics else self.network

    @property
    def untouched(self) -> Session:
        """Session of the network without loss and statistics, for checks that compute no scores."""
        return Session(self.network, self.inputs, seed=self.seed)

    def loss_by(self, own: Loss | None) -> Loss:
        """Return a user's loss of training batches as a loss of inputs; without a loss, that of the training step."""
        return self.loss if own is None else of_training_batches(own)

    def scoring_loss(self, own: Loss | None) -> Loss:
        """Return the loss that scores units of width: as of `loss_by`, but of drawn objects for detection maps."""
        draws = own is None and draws_objects(self.network, self.inputs[0])
        return partial(drawn_loss, seed=self.seed) if draws else self.loss_by(own)

    def session(self, loss: Loss | None = None) -> Session:
        """Return a session for planning.

        Args:
            loss: Function `loss(network, inputs) -> scalar`; None: planning without a loss.
        """
        session = Session(self.network, self.inputs, loss=loss, seed=self.seed, further=self.further)
        session.take_statistics(self.statistics)
        return session


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
