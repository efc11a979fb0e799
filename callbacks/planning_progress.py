"""The progress of planning in a Trainer, as quiet as its own progress bar."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import lightning.pytorch as pl

from prunerecover.display.progress import hidden, progress


@contextmanager
def planning_progress(trainer: pl.Trainer, description: str) -> Iterator[None]:
    """Show from now on what is being done: on the first rank, and unless the trainer's progress bar is off.

    Args:
        trainer: Whose settings hold.
        description: What is shown until a stage inside says more.
    """
    with hidden(not trainer.is_global_zero or trainer.progress_bar_callback is None), progress(description):
        yield
