"""Lay adapters and fold them in the middle of a fit: in the module, its optimizers, its shadow copies and DDP."""

from __future__ import annotations

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities import rank_zero_warn

from prunerecover.callbacks.ledger import optimizer_groups as optimizers
from prunerecover.callbacks.ledger.averaged_copies import shadow_modules
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.callbacks.surgery.operate import rewrap
from prunerecover.model.paths import get_module, unwrap
from prunerecover.recovery.lora import Adapters, frozen_parameters


def lay(trainer: pl.Trainer, module: pl.LightningModule, target: str, adapters: Adapters, seed: int) -> None:
    """Lay adapters on the plain network at `target`; optimizers hold them instead of what they freeze.

    Raises:
        RuntimeError: If no optimizer holds any parameter of the network; nothing is changed then.
    """
    ledger, network = Ledger.of(module), unwrap(get_module(module, target))
    optimizers.check_joinable(trainer.optimizers, network)
    optimizers.forget_gradients(trainer.optimizers)
    with torch.inference_mode(False):
        laid = ledger.lay(module, target, adapters, seed)
        for shadow in shadow_modules(module):
            Ledger.of(shadow).lay(shadow, target, adapters, seed)
    ledger.places[target] = optimizers.take_adapters(trainer.optimizers, network, laid)
    rewrap(trainer)


def fold(trainer: pl.Trainer, module: pl.LightningModule, target: str) -> None:
    """Fold the adapters of the network at `target`, if it has any: surgery begins from a plain network."""
    ledger = Ledger.of(module)
    if target not in ledger.adapters:
        return
    network, adapters = unwrap(get_module(module, target)), ledger.adapters[target]
    if trainer.state.fn == "fit" and not any(getattr(c, "adapts", False) for c in trainer.callbacks):  # type: ignore[attr-defined]
        rank_zero_warn(
            f"The adapters on the network at '{target}' are folded for its surgery, and no callback here lays new "
            "ones: from now on all of its weights train. Pass LoRARecover, as in the run that is resumed."
        )
    optimizers.forget_gradients(trainer.optimizers)
    with torch.inference_mode(False):
        folded = ledger.fold(module, target)
        for shadow in shadow_modules(module):
            Ledger.of(shadow).fold(shadow, target)
    thawed = frozen_parameters(network, adapters)
    optimizers.return_adapters(trainer.optimizers, folded, thawed, ledger.places.pop(target, {}))
    rewrap(trainer)
