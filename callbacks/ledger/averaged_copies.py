"""Averaged copies of the module that other callbacks keep (weight averaging, EMA, SWA): surgery changes them too.

They pair parameters by position. Left as they are they raise when shapes differ, and average the wrong tensors when
not. Copies for another purpose, such as a teacher, stay as they are: a copy counts as averaged if it is torch's
`AveragedModel` or if its attribute says so.
"""

from __future__ import annotations

import re

import lightning.pytorch as pl
from torch.optim.swa_utils import AveragedModel

AVERAGED = re.compile(r"(^|_)(ema|swa|avg|average|averaged|average)(_|$)")


def averaged_copies(module: pl.LightningModule) -> list[pl.LightningModule]:
    """Return the averaged copies of `module` that callbacks of its trainer hold."""
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
