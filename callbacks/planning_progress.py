"""The progress of planning in a Trainer: a bar beside its own bar, or lines where that is off."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import lightning.pytorch as pl

from prunerecover.display.progress import hidden, progress


@contextmanager
def planning_progress(trainer: pl.Trainer, description: str) -> Iterator[None]:
    """Show from now on what is being done, on the first rank.

    Args:
        trainer: Whose settings hold: without a progress bar there is none here, and what takes long says so in lines.
        description: What is shown until a stage inside says more.
    """
    bar = trainer.progress_bar_callback is not None
    with hidden(not trainer.is_global_zero), progress(description, bar=bar):
        yield
