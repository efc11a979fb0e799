"""Run a plan method on a recipe's module and data, with the weights of a checkpoint if one is named."""

from __future__ import annotations

from pathlib import Path

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities import rank_zero_warn

from prunerecover.checkpoint.ledger_record import KEY, LedgerRecord
from prunerecover.model.paths import get_module, unwrap
from prunerecover.model.untrained import said_of_untrained
from prunerecover.plan.plan import Plan
from prunerecover.recipes.networks.model_names import expand
from prunerecover.recipes.plan_methods.base import PlanMethod, PlanTask


def plan_with(
    method: PlanMethod,
    module: pl.LightningModule,
    datamodule: pl.LightningDataModule | None,
    calibration: int,
    target: str | None,
    ckpt_path: str | None,
    device: torch.device,
    output: Path,
) -> Plan:
    """Make a plan for the network in `module` from training samples; warn if it is as it was initialised.

    Args:
        method: How to decide.
        module: Holds the network; unchanged.
        datamodule: Gives the training loader; None: the module does.
        calibration: Samples to use.
        target: Path of the network in the module; None: the only one that the method can decide about.
        ckpt_path: A Lightning checkpoint with the weights to plan for; None: those of the module.
        device: Where to calibrate.
        output: The plan's file.

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
    return method.make(PlanTask(module, datamodule, path, calibration, output, ckpt_path))


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
