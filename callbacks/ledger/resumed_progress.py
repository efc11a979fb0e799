"""Corrections of Lightning's restored progress, without which a resumed fit would differ from an uninterrupted fit.

All corrections concern Lightning 2.6: in files written after a training step, the next validation counts as done, and
the state of loaders made early is lost.
"""

from __future__ import annotations

import lightning.pytorch as pl

from prunerecover.callbacks.ledger.random_state import isolated


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
