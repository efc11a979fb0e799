"""Copies of the module that other callbacks keep (weight averaging, EMA, SWA): surgery changes them too.

They pair parameters by position. Left as they are they raise when shapes differ, and average the wrong tensors when not.
"""

from __future__ import annotations

import lightning.pytorch as pl
from torch.optim.swa_utils import AveragedModel


def shadow_modules(module: pl.LightningModule) -> list[pl.LightningModule]:
    """Return the copies of `module` that callbacks of its trainer hold."""
    trainer = module._trainer
    if trainer is None:
        return []
    found: list[pl.LightningModule] = []
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        for value in vars(callback).values():
            inner = value.module if isinstance(value, AveragedModel) else value
            if isinstance(inner, type(module)) and inner is not module and not any(inner is m for m in found):
                found.append(inner)
    return found
