"""Adapters in float32 where a Trainer has all other weights in half precision ("16-true", "bf16-true").

Lightning converts the whole module before each loop, resumed fits included: adapters would be rounded, and a resumed
fit would continue with other values than an uninterrupted fit.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import lightning.pytorch as pl
from lightning.pytorch.plugins.precision import HalfPrecision
from torch import Tensor, nn

from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.model.paths import get_module
from prunerecover.recovery.lora import adapter_parameters


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
