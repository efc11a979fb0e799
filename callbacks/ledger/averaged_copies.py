"""Averaged copies of the module in other callbacks (weight averaging, EMA, SWA): surgery changes the copies, too.

Averaging pairs parameters by position. Without surgery on the copies, averaging would raise on differing shapes, or mix
the wrong tensors. Copies for another purpose, a teacher for example, stay unchanged: a copy counts as averaged if its
class is torch's `AveragedModel` or if the attribute's name says "ema", "swa", "avg" or "average".
"""

from __future__ import annotations

import re

import lightning.pytorch as pl
from torch.optim.swa_utils import AveragedModel

AVERAGED = re.compile(r"(^|_)(ema|swa|avg|average|averaged|average)(_|$)")


def averaged_copies(module: pl.LightningModule) -> list[pl.LightningModule]:
    """Return the averaged copies of `module` held by callbacks of its trainer."""
    trainer = module._trainer
    if trainer is None:
        return []
    found: list[pl.LightningModule] = []
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        for name, value in vars(callback).items():
            copy = value.module if isinstance(value, AveragedModel) else value
            averaged = isinstance(value, AveragedModel) or AVERAGED.search(name.lower()) is not None
            if averaged and type(copy) is type(module) and copy is not module and not any(copy is m for m in found):
                found.append(copy)
    return found
