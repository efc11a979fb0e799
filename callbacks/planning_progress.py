"""Progress of planning in a Trainer: a bar beside the Trainer's own bar, or lines without one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import lightning.pytorch as pl

from prunerecover.display.progress import hidden, progress


@contextmanager
def planning_progress(trainer: pl.Trainer, description: str) -> Iterator[None]:
    """Show the progress of planning on the first rank.

    Args:
        trainer: Trainer with its settings: without a progress bar of the Trainer, long work is reported in lines.
        description: Text of the bar until an inner stage replaces the text.
    """
    bar = trainer.progress_bar_callback is not None
    with hidden(not trainer.is_global_zero), progress(description, bar=bar):
        yield
