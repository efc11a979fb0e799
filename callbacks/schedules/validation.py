"""Validation in the middle of a fit, of the network in its present state, visible to the caller alone."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Checkpoint, EarlyStopping, ProgressBar
from lightning.pytorch.trainer.states import RunningStage

from prunerecover.callbacks.ledger.callback import LedgerCallback
from prunerecover.callbacks.ledger.random_state import isolated
from prunerecover.callbacks.logs.history import logged_now

UNCONCERNED = (Checkpoint, EarlyStopping, ProgressBar, LedgerCallback)  # act on metrics, or keep them


class _Reader(pl.Callback):
    """Reader of the metrics logged by a validation, including its end."""

    def __init__(self) -> None:
        self.logged: dict[str, float] = {}

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Read the metrics before Lightning forgets them."""
        self.logged = logged_now(trainer._results)


def validate(trainer: pl.Trainer, module: pl.LightningModule) -> dict[str, float]:
    """Run the fit's own validation, on all ranks, and return the logged metrics.

    Averaged weights and other callbacks that change the validated network take part. Random states, progress, metrics
    and loggers of the fit are restored afterwards.

    Args:
        trainer: Trainer in a fit, between steps.
        module: LightningModule of the fit.
    """
    reader = _Reader()
    with isolated(), _unnoticed(trainer, reader):
        trainer.fit_loop.epoch_loop.val_loop.run()
    return reader.logged


@contextmanager
def _unnoticed(trainer: pl.Trainer, reader: pl.Callback) -> Iterator[None]:
    """Make a validation begin from its first batch, and restore the state of the fit."""
    loop, connector = trainer.fit_loop.epoch_loop.val_loop, trainer._logger_connector
    callbacks: list[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]
    progress, restarting, stage = loop.batch_progress, loop.restarting, trainer.state.stage
    loggers, logged = trainer.loggers, dict(vars(connector))
    timed = {name: value for name, value in vars(trainer).items() if name == "_last_val_time"}
    metrics = {name: dict(value) for name, value in logged.items() if isinstance(value, dict)}
    try:
        trainer.callbacks = [c for c in callbacks if not isinstance(c, UNCONCERNED)] + [reader]  # type: ignore[attr-defined]
        trainer.loggers = []
        trainer.state.stage = RunningStage.VALIDATING
        loop.batch_progress, loop.restarting = copy.deepcopy(progress), False
        yield
    finally:
        trainer.callbacks, trainer.loggers = callbacks, loggers  # type: ignore[attr-defined]
        trainer.state.stage = stage
        vars(trainer).update(timed)
        loop.batch_progress, loop.restarting = progress, restarting
        vars(connector).update({**logged, **metrics})
