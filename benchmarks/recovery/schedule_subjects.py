"""What the benchmark of learning rates after surgery prunes and trains: a network, its data, and how it is scored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import lightning.pytorch as pl
import numpy as np
from lightning.pytorch.utilities.seed import isolate_rng
from numpy.typing import NDArray
from torch import nn

from benchmarks.data.real import CHECKPOINTS
from benchmarks.data.tiny_imagenet import QUIET

NAME = "recovery_schedule"
PLANS = CHECKPOINTS / NAME
CALIBRATION = 256
Hits = NDArray[np.float64]


@dataclass(frozen=True)
class Subject:
    """A network that is pruned and trained in one fit.

    Attributes:
        title: Heading of its table.
        about: Sentences above it.
        rates: Constant learning rates of the user's.
        recovered: Returns the network that a fit leaves, given a seed, a rate and callbacks beside the one that prunes.
        held_out: Says whether a network is right, per training image that it was neither planned nor trained on.
        tested: The same of test images.
    """

    title: str
    about: str
    rates: tuple[float, ...]
    recovered: Callable[[int, float, Sequence[pl.Callback]], nn.Module]
    held_out: Callable[[nn.Module, int], Hits]
    tested: Callable[[nn.Module], Hits]


def fitted(
    make: Callable[[], pl.LightningModule], data: Any, callbacks: list[pl.Callback], seed: int, **settings: Any
) -> Any:
    """Train a module on a core, seeded, and return it.

    Args:
        make: Makes the module.
        data: Its training loader.
        callbacks: Of the Trainer.
        seed: Of everything random in the fit.
        settings: Further arguments of the Trainer.
    """
    with isolate_rng():
        pl.seed_everything(seed, verbose=False)
        module = make()
        pl.Trainer(accelerator="cpu", callbacks=callbacks, **QUIET, **settings).fit(module, data)
    return module
