"""Surgery under strategies that shard the model: the structure must be final before any weights are loaded."""

from __future__ import annotations

import lightning.pytorch as pl
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import nn

from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.callbacks.surgery.announce import announce
from prunerecover.callbacks.surgery.artifacts import artifact_folder, save_merged
from prunerecover.model.paths import get_module, unwrap
from prunerecover.plan.plan import Plan
from prunerecover.recovery.batchnorm import batchnorms
from prunerecover.surgery.apply_edits import check_source, check_tensors

SHARDED = (FSDPStrategy, ModelParallelStrategy, DeepSpeedStrategy)


def given_early(trainer: pl.Trainer, name: str, plan: Plan | None, start: int) -> Plan:
    """Return the given plan, to be applied at the start of the fit.

    Args:
        trainer: Trainer with a strategy that shards.
        name: Name of the callback.
        plan: Given plan, or None.
        start: Epoch of the surgery.

    Raises:
        ValueError: If there is no plan, or the plan is for a later epoch.
    """
    strategy = type(trainer.strategy).__name__
    if plan is None:
        raise ValueError(
            f"Expected {name}(plan=...) with {strategy}, which shards the model before any surgery could "
            "happen. Make the plan beforehand and save it: plan.save('plan.json')."
        )
    if start > 0:
        raise ValueError(
            f"Expected schedule start=0 with {strategy}, which shards the model before the first epoch, but got "
            f"{start}. Train the dense model in a fit of its own, and prune in the next one."
        )
    return plan


class EarlySurgery:
    """Surgery before the model is sharded, checked once it is known whether a checkpoint brings weights."""

    def __init__(self) -> None:
        self._error: ValueError | None = None
        self._network: nn.Module | None = None

    def operate(self, trainer: pl.Trainer, module: pl.LightningModule, target: str, plan: Plan, by: str) -> None:
        """Apply a plan; a mismatch with the present weights does not matter if a checkpoint brings other weights.

        Args:
            trainer: Trainer that sets up a loop.
            module: LightningModule of the network.
            target: Path of the network.
            plan: Plan for the network.
            by: Key of the callback.
        """
        ledger, network = Ledger.of(module), unwrap(get_module(module, target))
        check_source(network, plan)
        try:
            check_tensors(network, plan)
        except ValueError as error:
            self._error = error
        ledger.apply(module, target, plan, structure_only=self._error is not None)
        self._network = network
        announce(trainer, ledger, by, target, plan)

    def finish(self, ledger: Ledger) -> None:
        """Warn about the BatchNorm statistics of a network pruned without a checkpoint.

        Args:
            ledger: Ledger of the module, which knows whether a checkpoint was read.

        Raises:
            ValueError: If the plan's tensors belong to other weights, and no checkpoint brings any.
        """
        network, self._network = self._network, None
        if ledger.from_checkpoint:
            return
        if self._error is not None:
            raise self._error
        if network is not None:
            warn_of_statistics(network)


def warn_of_statistics(network: nn.Module) -> None:
    """Warn that BatchNorm is not recalibrated without training data."""
    if batchnorms(network):
        rank_zero_warn(
            "The plan was applied without recalibrating BatchNorm, whose statistics are still those of the dense "
            "network, and without reconstruction: scores will be low until it is trained. Fit first on one device "
            "or with DDP, or call recalibrate_batchnorm(network, batches)."
        )


def save_copy(trainer: pl.Trainer, module: pl.LightningModule) -> None:
    """Save merged copies of pruned or adapted networks beside the checkpoints, if any."""
    folder = artifact_folder(trainer)
    if folder is not None and isinstance(trainer.strategy, SHARDED):
        rank_zero_info("prunerecover: no rank has the whole model to merge; load_pruned opens the checkpoint.")
    elif folder is not None and trainer.is_global_zero:
        save_merged(module, folder)
