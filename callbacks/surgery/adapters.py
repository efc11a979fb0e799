"""Injection and merging of adapters in the middle of a fit: in the module, optimizers, averaged copies and DDP."""

from __future__ import annotations

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities import rank_zero_warn

from prunerecover.callbacks.ledger import optimizer_groups as optimizers
from prunerecover.callbacks.ledger.averaged_copies import averaged_copies
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.callbacks.surgery.apply_in_trainer import rewrap
from prunerecover.model.paths import get_module, unwrap
from prunerecover.recovery.lora import Adapters, frozen_parameters


def inject_adapters_in_trainer(
    trainer: pl.Trainer, module: pl.LightningModule, target: str, adapters: Adapters, seed: int
) -> None:
    """Inject adapters on the plain network at `target`; adapters replace the frozen parameters in the optimizers.

    Args:
        trainer: Trainer in the middle of a fit, between steps.
        module: LightningModule of the fit.
        target: Path of the network, still without adapters.
        adapters: Adapters planned for the network in its present state.
        seed: Seed of the adapters' initial values; the same on every rank.

    Raises:
        RuntimeError: If no optimizer holds any parameter of the network; the module stays unchanged.
    """
    ledger, network = Ledger.of(module), unwrap(get_module(module, target))
    optimizers.check_joinable(trainer.optimizers, network)
    optimizers.forget_gradients(trainer.optimizers)
    with torch.inference_mode(False):
        injected, *_ = [Ledger.of(m).inject(m, target, adapters, seed) for m in (module, *averaged_copies(module))]
    ledger.places[target] = optimizers.take_adapters(trainer.optimizers, network, injected)
    rewrap(trainer)


def merge_adapters_in_trainer(trainer: pl.Trainer, module: pl.LightningModule, target: str) -> None:
    """Merge the adapters of the network at `target`, if any: surgery begins from a plain network.

    Args:
        trainer: Trainer in the middle of a fit, between steps, or before any other loop.
        module: LightningModule of the network.
        target: Path of the network.
    """
    ledger = Ledger.of(module)
    if target not in ledger.adapters:
        return
    network, adapters = unwrap(get_module(module, target)), ledger.adapters[target]
    if trainer.state.fn == "fit" and not any(getattr(c, "adapts", False) for c in trainer.callbacks):  # type: ignore[attr-defined]
        rank_zero_warn(
            f"The adapters on the network at '{target}' are merged for its surgery, and no callback here injects new "
            "ones: from now on all of its weights train. Pass LoRARecover, as in the run that is resumed."
        )
    optimizers.forget_gradients(trainer.optimizers)
    with torch.inference_mode(False):
        merged, *_ = [Ledger.of(m).merge_adapters(m, target) for m in (module, *averaged_copies(module))]
    thawed = frozen_parameters(network, adapters)
    optimizers.return_adapters(trainer.optimizers, merged, thawed, ledger.places.pop(target, {}))
    rewrap(trainer)
