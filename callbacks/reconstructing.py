"""What callbacks do once units are gone: BatchNorm anew, and reconstruction where widths were narrowed."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn

from prunerecover.callbacks.calibration.capture import CapturedInputs, capture_inputs
from prunerecover.callbacks.ledger.averaged_copies import averaged_copies
from prunerecover.callbacks.pruning import PruningCallback
from prunerecover.model.arguments import check_flag
from prunerecover.model.copies import deep_copy
from prunerecover.model.paths import get_module, unwrap
from prunerecover.plan.budget import Budget
from prunerecover.plan.plan import Plan
from prunerecover.recovery import reconstruction
from prunerecover.recovery.batchnorm import STATISTICS, batchnorms, recalibrate_batchnorm, several_samples
from prunerecover.recovery.before_narrowing import narrows


class RecalibratingCallback(PruningCallback):
    """Base: estimates the statistics of BatchNorm anew once units are gone."""

    also_left = ""  # what else is not done without data

    def after_surgery(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, target: str, plan: Plan, before: nn.Module | None
    ) -> None:
        """Estimate BatchNorm statistics anew; all ranks and averages take the first's.

        Args:
            trainer: In the middle of the fit.
            pl_module: Its LightningModule.
            target: Path of the network.
            plan: What was done.
            before: What `keep` returned.
        """
        network = unwrap(get_module(pl_module, target))
        if before is None and not batchnorms(network):
            return
        inputs = capture_inputs(trainer, pl_module, target, self.calibration, self.seed)
        inputs = several_samples(inputs) or inputs
        self._recover(trainer, pl_module, target, plan, before, inputs)
        statistics = {n: b for n, b in network.named_buffers() if n.rpartition(".")[2] in STATISTICS}
        _take_from_first(trainer, statistics)
        for average in averaged_copies(pl_module):  # an average of old statistics is one of other activations
            averaged = dict(unwrap(get_module(average, target)).named_buffers())
            for name, value in statistics.items():
                averaged[name].copy_(value)

    def _recover(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        target: str,
        plan: Plan,
        before: nn.Module | None,
        inputs: list[CapturedInputs],
    ) -> None:
        """Recalibrate BatchNorm on what the network gets."""
        recalibrate_batchnorm(unwrap(get_module(pl_module, target)), inputs)

    def after_surgery_without_data(self, network: nn.Module) -> None:
        """Say that BatchNorm is not recalibrated without training data."""
        if batchnorms(network):
            rank_zero_warn(
                "The plan was applied without recalibrating BatchNorm, whose statistics are still those of the dense "
                f"network{self.also_left}: scores will be low until it is trained. Fit first on one device or with "
                "DDP, or call recalibrate_batchnorm(network, batches)."
            )


class ReconstructingCallback(RecalibratingCallback):
    """Base: fits what is left to what the network gave before it was narrowed.

    Args:
        budget: How much goes.
        reconstruct: Whether weights are fitted; None: of networks with BatchNorm.
        arguments: As of `PruningCallback`.
    """

    also_left = ", and without reconstruction"

    def __init__(self, budget: Budget | None, *, reconstruct: bool | None = None, **arguments: Any) -> None:
        check_flag("reconstruct", reconstruct)
        super().__init__(budget, **arguments)
        self.reconstruct = reconstruct

    def keep(self, network: nn.Module, plan: Plan) -> nn.Module | None:
        """Return a copy of the network to reconstruct the narrowed one against."""
        wanted = bool(batchnorms(network)) if self.reconstruct is None else self.reconstruct
        return deep_copy(network) if wanted and narrows(plan) else None

    def _recover(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        target: str,
        plan: Plan,
        before: nn.Module | None,
        inputs: list[CapturedInputs],
    ) -> None:
        """Reconstruct the network, and BatchNorm with it; averages of what it was move along."""
        if before is None:
            super()._recover(trainer, pl_module, target, plan, before, inputs)
            return
        network, averages = unwrap(get_module(pl_module, target)), averaged_copies(pl_module)
        narrowed = {name: p.detach().clone() for name, p in network.named_parameters()} if averages else {}
        reconstruction.reconstruct(network, before, plan, inputs, seed=self.seed)
        _take_from_first(trainer, dict(network.named_parameters()))
        for average in averages:
            averaged = dict(unwrap(get_module(average, target)).named_parameters())
            for name, parameter in network.named_parameters():
                averaged[name].data += (parameter.detach() - narrowed[name]).to(averaged[name].device)


def _take_from_first(trainer: pl.Trainer, tensors: dict[str, Tensor]) -> None:
    """Give all ranks the values of the first."""
    if trainer.world_size > 1:
        values = trainer.strategy.broadcast({name: tensor.detach().cpu() for name, tensor in tensors.items()})
        for name, value in values.items():
            tensors[name].data.copy_(value)
