"""Trainers inside other Trainers, or in a command: to try a model out, and to plan in a fit without training.

Planning at the start of a fit (`capture_inputs`, `training_loss`) needs a Trainer with everything set up: the user's
hooks, data, optimizers and precision. `at_start_of_fit` provides the Trainer, on copies.
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

from prunerecover.callbacks.ledger.lightning_corrections import make_leaves_quietly
from prunerecover.callbacks.ledger.random_state import isolated, seed_all

QUIET: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
T = TypeVar("T")


def nested_trainer(device: torch.device, callbacks: list[pl.Callback], **settings: Any) -> pl.Trainer:
    """Return a Trainer on one device that writes no files.

    Args:
        device: Device of the training.
        callbacks: All callbacks of the Trainer.
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
    """Return the value of `do(trainer, module)`, called at the beginning of training; no training follows.

    Args:
        module: LightningModule, copied first; random states stay unchanged.
        datamodule: Data of the fit; None: the module has its own data.
        do: Function called once, with the copy, in 32-bit precision and without the other ranks.
        seed: Seed of random numbers in `do`: a training step used for scores may draw noise, and pruning callbacks use
            the seed, too.

    Raises:
        ValueError: If there is no training data.
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
    """Callback that calls a function at the start of training, and ends the fit there."""

    def __init__(self, do: Callable[[pl.Trainer, pl.LightningModule], T], seed: int) -> None:
        self.do, self.seed = do, seed
        self.results: list[T] = []

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Call the function."""
        seed_all(self.seed)
        self.results.append(self.do(trainer, pl_module))
        trainer.should_stop = True


def own_copy(module: pl.LightningModule) -> pl.LightningModule:
    """Copy a module for another trainer, without its present trainer and compiled calls."""
    memo = {id(vars(module).get(name)): None for name in ("_trainer", "_fabric") if vars(module).get(name) is not None}
    copied = copy.deepcopy(module, memo)
    for inner in copied.modules():
        vars(inner).pop("_compiled_call_impl", None)
    return copied


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the messages of every trainer at start and end; warnings stay."""
    log = logging.getLogger("lightning.pytorch")
    before = log.level
    try:  # an interrupt may arrive while the level is set
        log.setLevel(logging.WARNING)
        yield
    finally:
        log.setLevel(before)


@contextmanager
def alone() -> Iterator[None]:
    """Hide the ranks of the process group: nobody waits for their work or averages with their values."""
    with among(None):
        yield


@contextmanager
def among(ranks: Any) -> Iterator[None]:
    """Make a group count as all ranks: the ranks hidden by `alone`, inside its `with` block.

    Args:
        ranks: Group returned by `all_ranks` outside; None: a single rank.
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
    """Return the group of all ranks; None without a group, or while the group is hidden."""
    return dist.group.WORLD if dist.is_available() else None
