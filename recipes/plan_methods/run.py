"""Runs of a plan method on a recipe's module and data, optionally with the weights of a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities import rank_zero_warn

from prunerecover.callbacks.planning.base import Planning
from prunerecover.callbacks.planning.depth import DepthPlanning
from prunerecover.callbacks.planning.joint import JointPlanning
from prunerecover.callbacks.planning.width import WidthPlanning
from prunerecover.callbacks.pruning import PruneCallback
from prunerecover.checkpoint.ledger_record import KEY, LedgerRecord
from prunerecover.model.paths import get_module, unwrap
from prunerecover.model.untrained import said_of_untrained
from prunerecover.plan.plan import Plan
from prunerecover.quality import Quality
from prunerecover.recipes.networks.model_names import expand
from prunerecover.recipes.plan_methods.base import PlanMethod, PlanningMethod, PlanTask, SearchMethod
from prunerecover.recipes.plan_methods.joint import JointMethod
from prunerecover.recipes.plan_methods.width import WidthMethod

METHODS: dict[type[Planning], type[PlanningMethod]] = {
    DepthPlanning: SearchMethod,
    WidthPlanning: WidthMethod,
    JointPlanning: JointMethod,
}


def method_of(callbacks: Sequence[pl.Callback], name: str | None) -> PlanMethod:
    """Return a method that decides as the pruning callback of a recipe, with the whole budget at once.

    Args:
        callbacks: Callbacks of the recipe.
        name: Class of the callback; None: the only pruning callback.

    Raises:
        ValueError: If there is no matching callback, there are several, or the callback has a plan already or
            finds out in a fit how much goes.
    """
    pruning = [callback for callback in callbacks if isinstance(callback, PruneCallback)]
    named = [callback for callback in pruning if name in (None, type(callback).__name__)]
    if len(named) != 1:
        there = " and ".join(type(callback).__name__ for callback in pruning) or "none"
        raise ValueError(
            f"Expected one pruning callback {'' if name is None else f'{name} '}in the recipe to plan for, but got "
            f"{there}. Name one of several by --callback, or decide by --method."
        )
    (prune,) = named
    if isinstance(prune.budget, Quality):
        raise ValueError(
            f"Expected a pruning callback with a budget to plan for, but got {prune!r}, which finds out in a fit how "
            "much goes. Name a budget: --method width --method.macs 0.3."
        )
    if prune.given.said is not None:
        raise ValueError(
            f"Expected a pruning callback with a budget to plan for, but got {prune!r}, whose plan says already what "
            "goes. Decide by --method."
        )
    return METHODS[type(prune.planning)](prune.planning, prune.budget, prune.calibration, prune.target)


def plan_with(
    method: PlanMethod,
    module: pl.LightningModule,
    datamodule: pl.LightningDataModule | None,
    calibration: int | None,
    target: str | None,
    ckpt_path: str | None,
    device: torch.device,
    output: Path,
) -> Plan:
    """Make a plan for the network in `module` from training samples; warn if the network is untrained.

    Args:
        method: Method that decides.
        module: Module with the network; unchanged.
        datamodule: Source of the training loader; None: the module.
        calibration: Number of samples to use; None: the method's.
        target: Path of the network in the module; None: the only network for the method.
        ckpt_path: Lightning checkpoint with the weights to plan for; None: the module's weights.
        device: Device for calibration.
        output: File of the plan.

    Raises:
        ValueError: If the checkpoint is of a pruned model.
    """
    if ckpt_path is not None:
        load_dense_weights(module, ckpt_path)
    path = method.find(module.to(device), target)
    network = unwrap(get_module(module, path))
    instead = "plan with the weights of a fit: --ckpt_path dense.ckpt."
    if warning := said_of_untrained(network, "The plan is for", instead):
        rank_zero_warn(warning)
    samples = method.calibration if calibration is None else calibration
    return method.make(PlanTask(module, datamodule, path, samples, output, ckpt_path))


def load_dense_weights(module: pl.LightningModule, path: str) -> None:
    """Load the weights of a checkpoint of the unpruned module.

    Raises:
        ValueError: If the file is of a pruned module.
    """
    checkpoint = torch.load(expand(path), map_location="cpu", weights_only=True)
    if KEY in checkpoint and any(plan.edits for plan in LedgerRecord.from_dict(checkpoint[KEY]).plans.values()):
        raise ValueError(
            f"Expected a checkpoint of the dense model at {path}, but it has been pruned already. "
            "Give one from before the surgery, or plan without --ckpt_path."
        )
    module.load_state_dict(checkpoint["state_dict"])
