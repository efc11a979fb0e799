"""Surgery in the middle of a fit: everything attached to the model changes with the model, in one place."""

from __future__ import annotations

import sys
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import ReduceLROnPlateau

from prunerecover.callbacks.ledger import optimizer_groups as optimizers
from prunerecover.callbacks.ledger.averaged_copies import averaged_copies
from prunerecover.callbacks.ledger.callback import LedgerCallback
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.model.paths import get_module, unwrap
from prunerecover.plan.plan import Plan
from prunerecover.recovery.lora import Adapters, frozen_parameters
from prunerecover.surgery.apply_edits import check_source, check_tensors
from prunerecover.surgery.merging import merge_edits
from prunerecover.surgery.optimizer_update import update_optimizer
from prunerecover.surgery.provenance import plan_for


def apply_in_trainer(trainer: pl.Trainer, module: pl.LightningModule, target: str, plan: Plan) -> None:
    """Apply a plan to the network at `target`: in module, optimizers, averaged copies and DDP wrapper.

    Args:
        trainer: Trainer in the middle of a fit, at the start of an epoch, or before any other loop.
        module: LightningModule of the network.
        target: Path of the network.
        plan: Plan for the network in its present state; the same on every rank. An empty plan changes no weights.

    Raises:
        RuntimeError: If trainable parameters are in no optimizer.
        ValueError: If the plan is for another model, or fitted tensors are missing or of other weights. After any
            error, the module is unchanged.
    """
    if not plan.edits:
        return
    network = unwrap(get_module(module, target))
    check_source(network, plan)
    check_tensors(network, plan)
    optimizers.check_held(trainer.optimizers, network)
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, LedgerCallback):
            callback.before_surgery(trainer, module, target)
    optimizers.forget_gradients(trainer.optimizers)
    with torch.inference_mode(False):  # Lightning's mode before test and predict: new weights could never train
        applied = Ledger.of(module).apply(module, target, plan)
        for optimizer in trainer.optimizers:
            update_optimizer(optimizer, applied)
        for average in averaged_copies(module):
            Ledger.of(average).apply(average, target, plan)
    rewrap(trainer)
    forget_best(trainer)


def merge_in_trainer(trainer: pl.Trainer, module: pl.LightningModule, target: str) -> None:
    """Merge adjacent linear layers of the network at `target`, everywhere.

    Args:
        trainer: Trainer in the middle of a fit, at the start of an epoch, or before any other loop.
        module: LightningModule of the network.
        target: Path of the network.
    """
    network = unwrap(get_module(module, target))
    apply_in_trainer(trainer, module, target, plan_for(network, merge_edits(network), method="merge"))


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


def rewrap(trainer: pl.Trainer) -> None:
    """Give DDP a reducer for the present parameters; compiled code is dropped."""
    strategy = trainer.strategy
    if isinstance(strategy, DDPStrategy) and isinstance(strategy.model, DistributedDataParallel):
        strategy.model = strategy.lightning_module  # drops the last reference to the old wrapper first
        strategy.configure_ddp()
        strategy._pl_static_graph_delay_done = False
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()


def forget_best(trainer: pl.Trainer) -> None:
    """Reset "best" and the patience of early stopping: scores from before a surgery belong to another model."""
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, ModelCheckpoint) and callback.monitor is not None:
            _forget_best_checkpoint(callback)
        elif isinstance(callback, EarlyStopping):
            callback.wait_count = 0
            worst = torch.tensor(torch.inf)
            callback.best_score = worst if callback.mode == "min" else -worst
    for config in trainer.lr_scheduler_configs:
        scheduler: Any = config.scheduler
        if isinstance(scheduler, ReduceLROnPlateau):
            scheduler.best = torch.inf if scheduler.mode == "min" else -torch.inf
            scheduler.num_bad_epochs = 0


def _forget_best_checkpoint(callback: ModelCheckpoint) -> None:
    if callback.monitor is not None and callback.best_model_path:
        rank_zero_info(
            f"prunerecover: 'best' starts anew; {callback.best_model_path} is of the model before this surgery."
        )
    callback.best_k_models = {}
    callback.best_model_path = callback.kth_best_model_path = ""
    callback.best_model_score = callback.current_score = None
    callback.kth_value = torch.tensor(torch.inf if callback.mode == "min" else -torch.inf)
