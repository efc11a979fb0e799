"""Recovery right after surgery: layers or blocks fitted to the dense network, and recalibrated BatchNorm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import lightning.pytorch as pl
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor, nn

from prunerecover.callbacks.calibration.capture import CapturedInputs
from prunerecover.callbacks.calibration.surgery import Surgery
from prunerecover.callbacks.ledger.averaged_copies import averaged_copies
from prunerecover.callbacks.surgery.sharding import SHARDED
from prunerecover.model.copies import deep_copy
from prunerecover.model.paths import get_module, unwrap
from prunerecover.plan.plan import Plan
from prunerecover.recovery import reconstruction
from prunerecover.recovery.batchnorm import STATISTICS, batchnorms, several_samples
from prunerecover.recovery.blocks.reconstruct_blocks import reconstruct_blocks
from prunerecover.recovery.judged import recalibrate_if_nearer
from prunerecover.recovery.reconstruction import made_for, reconstructible

Reconstruct = bool | Literal["blocks"] | None


class Reconstruction:
    """Recovery right after a surgery: the remaining weights are fitted, and BatchNorm statistics estimated again.

    Args:
        reconstruct: Whether weights are fitted, "blocks" for block by block; None: only in networks with mostly
            BatchNorm layers.
        seed: Seed of the held-out samples.

    Raises:
        TypeError: If `reconstruct` is neither True nor False nor None nor "blocks".
    """

    def __init__(self, reconstruct: Reconstruct, seed: int) -> None:
        if not isinstance(reconstruct, bool | None) and reconstruct != "blocks":
            raise TypeError(f"Expected argument reconstruct to be True or False or 'blocks', but got {reconstruct!r}.")
        self.reconstruct, self.seed = reconstruct, seed

    def check_strategy(self, trainer: pl.Trainer) -> None:
        """Raise ValueError if reconstruction was asked for, and the fit is sharded."""
        if self.reconstruct and isinstance(trainer.strategy, SHARDED):
            raise ValueError(
                f"Expected no reconstruct={self.reconstruct!r} with {type(trainer.strategy).__name__}, which shards "
                "the model before there is data to reconstruct it on. Use DDP or one device, or leave reconstruct out "
                "and train on."
            )

    def keep(self, network: nn.Module, plan: Plan) -> nn.Module | None:
        """Return a copy of the network before surgery, for comparison; None if no recovery follows."""
        touched = plan.edits and (batchnorms(network) or self.fits(network, plan))
        return deep_copy(network) if touched else None

    def fits(self, network: nn.Module, plan: Plan) -> bool:
        """Whether weights are fitted to the outputs of the network before surgery."""
        wanted = made_for(network) if self.reconstruct is None else bool(self.reconstruct)
        return wanted and reconstructible(plan)

    def recover(self, surgery: Surgery, plan: Plan, before: nn.Module | None) -> str:
        """Reconstruct the network, or recalibrate BatchNorm, if the output comes nearer to the output before surgery.

        All ranks and averaged copies take the result of the first rank. Returns the kept recovery, and the divergence
        of each, in words.

        Args:
            surgery: Network and captured inputs.
            plan: Plan of the surgery.
            before: Copy returned by `keep`.
        """
        if before is None:
            return ""
        trainer, network = surgery.trainer, surgery.network
        inputs = several_samples(surgery.inputs) or surgery.inputs
        if self.fits(before, plan):
            kept = self._reconstruct(surgery, plan, before, inputs)
        else:
            kept = str(recalibrate_if_nearer(network, before, inputs, seed=self.seed))
        said = str(trainer.strategy.broadcast(kept))
        rank_zero_info(f"prunerecover: after the surgery, kept: {said}.")
        statistics = {n: b for n, b in network.named_buffers() if n.rpartition(".")[2] in STATISTICS}
        _take_from_first(trainer, statistics)
        for average in averaged_copies(surgery.module):  # old averaged statistics are of the former activations
            averaged = dict(unwrap(get_module(average, surgery.target)).named_buffers())
            for name, value in statistics.items():
                averaged[name].copy_(value)
        return said

    def _reconstruct(self, surgery: Surgery, plan: Plan, before: nn.Module, inputs: list[CapturedInputs]) -> str:
        """Reconstruct the network, BatchNorm included; averaged copies move by the same difference."""
        network, averages = surgery.network, averaged_copies(surgery.module)
        pruned = {name: p.detach().clone() for name, p in network.named_parameters()} if averages else {}
        if self.reconstruct == "blocks":
            kept = _in_words(reconstruct_blocks(network, before, plan, inputs, seed=self.seed))
        else:
            kept = str(reconstruction.reconstruct(network, before, plan, inputs, seed=self.seed))
        _take_from_first(surgery.trainer, dict(network.named_parameters()))
        for average in averages:
            averaged = dict(unwrap(get_module(average, surgery.target)).named_parameters())
            for name, parameter in network.named_parameters():
                averaged[name].data += (parameter.detach() - pruned[name]).to(averaged[name].device)
        return kept


def _in_words(errors: Mapping[str, tuple[float, float]]) -> str:
    before, after = list(errors.values())[-1]
    return f"{len(errors)} blocks reconstructed (error of the last hidden states: {before:.4g} to {after:.4g})"


def _take_from_first(trainer: pl.Trainer, tensors: dict[str, Tensor]) -> None:
    """Give all ranks the values of the first rank."""
    if trainer.world_size > 1:
        values = trainer.strategy.broadcast({name: tensor.detach().cpu() for name, tensor in tensors.items()})
        for name, value in values.items():
            tensors[name].data.copy_(value)
