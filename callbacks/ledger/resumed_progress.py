"""Corrections of Lightning's restored progress, with which a resumed fit would not equal an uninterrupted one.

All of it is of Lightning 2.6, which takes the validation that comes next for done in files that are written after a
training step, and forgets the state of loaders that it had to make early.
"""

from __future__ import annotations

import lightning.pytorch as pl

from prunerecover.callbacks.ledger.random_state import isolated


def begin_next_epoch(trainer: pl.Trainer) -> None:
    """Have the next epoch begin with all its hooks if the file was written at the last step of one.

    Lightning counts that epoch as done, but takes the one that follows for the one that it is in the middle of.

    Args:
        trainer: At the start of training, its progress restored.
    """
    loop = trainer.fit_loop
    steps = loop.epoch_loop
    if loop.restarted_mid_epoch and steps.restarted_on_train_batch_end and steps.batch_progress.is_last_batch:
        loop.reset_restart_stage()


def load_loader_states(trainer: pl.Trainer) -> None:
    """Give loaders with a state of their own the one of the file, which Lightning does not if they were made before.

    They were if `configure_optimizers` asked for the number of steps (`trainer.estimated_stepping_batches`).

    Args:
        trainer: At the start of training, its progress restored.
    """
    loop = trainer.fit_loop
    if not loop.restarting or not loop._combined_loader_states_to_load:
        return
    with isolated():
        loop._load_combined_loader_states()
        iter(loop._data_fetcher)  # type: ignore[arg-type]


def pass_over_validation(trainer: pl.Trainer) -> None:
    """Have Lightning draw no random numbers when it counts a validation as done: it makes the loaders' iterators.

    Args:
        trainer: At the start of training.
    """
    validation = trainer.fit_loop.epoch_loop.val_loop
    if "increment_progress_to_evaluation_end" in vars(validation):
        return
    pass_over = validation.increment_progress_to_evaluation_end

    def draw_nothing() -> None:
        with isolated():
            pass_over()

    object.__setattr__(validation, "increment_progress_to_evaluation_end", draw_nothing)
