"""Trainers inside others, or in a command: to try a model out, and to decide in a fit that trains nothing.

What is decided at the start of a fit (`capture_inputs`, `training_loss`) needs a Trainer that has set everything up:
the user's hooks, data, optimizers and precision. `at_start_of_fit` lends one, on copies.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import lightning.pytorch as pl
import torch
import torch.distributed as dist

from prunerecover.callbacks.ledger.batch_leaves import make_leaves_quietly
from prunerecover.callbacks.ledger.random_state import isolated, seed_all

QUIET: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
T = TypeVar("T")


def nested_trainer(device: torch.device, callbacks: list[pl.Callback], **settings: Any) -> pl.Trainer:
    """Return a Trainer on one device that writes nothing.

    Args:
        device: Where it trains.
        callbacks: All that it has.
        settings: Further arguments of `Trainer`.
    """
    devices: Any = 1 if device.index is None else [device.index]
    accelerator = "gpu" if device.type == "cuda" else device.type
    make_leaves_quietly()
    defaults = {**QUIET, "num_sanity_val_steps": 0, "enable_checkpointing": False}
    return pl.Trainer(accelerator=accelerator, devices=devices, callbacks=callbacks, **{**defaults, **settings})


def at_start_of_fit(
    module: pl.LightningModule,
    datamodule: pl.LightningDataModule | None,
    do: Callable[[pl.Trainer, pl.LightningModule], T],
    seed: int = 0,
) -> T:
    """Return what `do(trainer, module)` returns where training would begin; nothing is trained.

    Args:
        module: Copied first; random states stay as they are.
        datamodule: None: the module has its own data.
        do: Called once, with the copy, in 32-bit precision and without the other ranks.
        seed: Of what `do` draws: a training step that scores may draw noise, and pruning callbacks seed it, too.

    Raises:
        ValueError: If there is nothing to train on.
    """
    visit = _Visit(do, seed)
    with isolated(), quiet(), alone():
        trainer = nested_trainer(module.device, [visit], max_epochs=1, limit_val_batches=0)
        trainer.fit(own_copy(module), datamodule=copy.copy(datamodule))
    if not visit.results:
        raise ValueError(
            f"Expected training data for {type(module).__name__}, but its train dataloader has no batch. Check it."
        )
    return visit.results[0]


class _Visit(pl.Callback, Generic[T]):
    """Does something at the start of training, and ends the fit there."""

    def __init__(self, do: Callable[[pl.Trainer, pl.LightningModule], T], seed: int) -> None:
        self.do, self.seed = do, seed
        self.results: list[T] = []

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Do it."""
        seed_all(self.seed)
        self.results.append(self.do(trainer, pl_module))
        trainer.should_stop = True


def own_copy(module: pl.LightningModule) -> pl.LightningModule:
    """Copy a module for a trainer of its own: not the trainer it is in, nor compiled calls, which lead back."""
    memo = {id(vars(module).get(name)): None for name in ("_trainer", "_fabric") if vars(module).get(name) is not None}
    copied = copy.deepcopy(module, memo)
    for inner in copied.modules():
        vars(inner).pop("_compiled_call_impl", None)
    return copied


@contextmanager
def quiet() -> Iterator[None]:
    """Keep what every trainer says at its start and end from the console; warnings stay."""
    log = logging.getLogger("lightning.pytorch")
    before = log.level
    try:  # an interrupt may arrive while the level is set
        log.setLevel(logging.WARNING)
        yield
    finally:
        log.setLevel(before)


@contextmanager
def alone() -> Iterator[None]:
    """Hide the other ranks: what they do meanwhile must not be waited for, nor averaged with."""
    with among(None):
        yield


@contextmanager
def among(ranks: Any) -> Iterator[None]:
    """Have a group as all the ranks that there are: those that `alone` hides, inside its `with` block.

    Args:
        ranks: What `all_ranks` returned outside; None: no other.
    """
    if not dist.is_available():
        yield
        return
    before = dist.group.WORLD
    try:
        dist.group.WORLD = ranks
        yield
    finally:
        dist.group.WORLD = before


def all_ranks() -> Any:
    """Return the group of all ranks; None if there are none, or others are hidden."""
    return dist.group.WORLD if dist.is_available() else None
