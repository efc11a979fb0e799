"""Corrections of Lightning 2.6 in a fit with a ledger: restored progress, precision of adapters, a warning.

- In files written after a training step, the next validation counts as done, and the state of loaders made early is
  lost: a resumed fit would differ from an uninterrupted fit.
- Where all weights are in half precision ("16-true", "bf16-true"), Lightning converts the whole module before each
  loop, resumed fits included: adapters in float32 would be rounded.
- Lightning's loaders make one leaf of nested batches per loader and epoch, by a class of torch that warns at every call
  (`LeafSpec` is deprecated); users can do nothing about the warnings. torch's own function for leaves gives no warning.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import lightning.pytorch as pl
from lightning.pytorch.plugins.precision import HalfPrecision
from lightning.pytorch.utilities import _pytree as lightning_tree
from torch import Tensor, nn
from torch.utils import _pytree as torch_tree

from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.callbacks.ledger.random_state import isolated
from prunerecover.model.paths import get_module
from prunerecover.recovery.lora import adapter_parameters


def begin_next_epoch(trainer: pl.Trainer) -> None:
    """Make the next epoch begin with all its hooks if the file was written at the last step of an epoch.

    Lightning counts the finished epoch as done, but treats the next epoch as already begun.

    Args:
        trainer: Trainer at the start of training, with restored progress.
    """
    loop = trainer.fit_loop
    steps = loop.epoch_loop
    if loop.restarted_mid_epoch and steps.restarted_on_train_batch_end and steps.batch_progress.is_last_batch:
        loop.reset_restart_stage()


def load_loader_states(trainer: pl.Trainer) -> None:
    """Restore the state of stateful loaders from the file; Lightning does not for loaders made before.

    Loaders are made early if `configure_optimizers` asks for the number of steps
    (`trainer.estimated_stepping_batches`).

    Args:
        trainer: Trainer at the start of training, with restored progress.
    """
    loop = trainer.fit_loop
    if not loop.restarting or not loop._combined_loader_states_to_load:
        return
    with isolated():
        loop._load_combined_loader_states()
        iter(loop._data_fetcher)  # type: ignore[arg-type]


def pass_over_validation(trainer: pl.Trainer) -> None:
    """Keep Lightning from drawing random numbers when counting a validation as done: it makes the loaders' iterators.

    Args:
        trainer: Trainer at the start of training.
    """
    validation = trainer.fit_loop.epoch_loop.val_loop
    if "increment_progress_to_evaluation_end" in vars(validation):
        return
    pass_over = validation.increment_progress_to_evaluation_end

    def draw_nothing() -> None:
        with isolated():
            pass_over()

    object.__setattr__(validation, "increment_progress_to_evaluation_end", draw_nothing)


def keep_adapters_precise(trainer: pl.Trainer) -> None:
    """Make a Trainer keep adapters unchanged when converting the module; call before the conversion."""
    plugin = trainer.precision_plugin
    if isinstance(plugin, HalfPrecision) and "convert_module" not in vars(plugin):
        object.__setattr__(plugin, "convert_module", partial(_convert, plugin.convert_module))


def _convert(convert: Callable[[nn.Module], nn.Module], module: nn.Module) -> nn.Module:
    kept: dict[nn.Parameter, Tensor] = {}
    if isinstance(module, pl.LightningModule):
        for target, adapters in Ledger.of(module).adapters.items():
            kept |= {p: p.data for p in adapter_parameters(get_module(module, target), adapters).values()}
    converted = convert(module)
    for parameter, value in kept.items():
        parameter.data = value
    return converted


def make_leaves_quietly() -> None:
    """Make Lightning create leaves by torch's function, in versions of torch with the function (and the warning)."""
    make = getattr(torch_tree, "treespec_leaf", None)
    if make is not None and hasattr(lightning_tree, "LeafSpec"):
        object.__setattr__(lightning_tree, "LeafSpec", make)
