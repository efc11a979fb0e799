"""Events of a transformers Trainer, passed on to attached callbacks."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from prunerecover.callbacks.trainers.fit import Fit


class Events(TrainerCallback):  # type: ignore[misc]
    """Callback of transformers that calls the hooks of attached callbacks.

    Args:
        fit: Fit of the Trainer.
    """

    def __init__(self, fit: Fit) -> None:
        self.fit = fit

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Begin: the model is wrapped, the optimizer made, and a checkpoint read."""
        self.fit.current_epoch = int(state.epoch or 0)
        self.fit.call("on_fit_start")
        self.fit.call("on_train_start")
        self.fit.current_epoch -= 1  # the first epoch is about to begin, too

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Do the surgeries due now."""
        self.fit.current_epoch += 1
        self.fit.call("on_train_epoch_start")

    def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Begin a step; for a schedule in steps, a step begins as an epoch does."""
        self.fit.call("on_train_epoch_start", callbacks=self.fit.by_step)
        self.fit.call("on_train_batch_start", None, self.fit.batch_index)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """End an epoch."""
        self.fit.call("on_train_epoch_end")

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Detach, and write a merged copy."""
        self.fit.call("on_train_end")
        self.fit.call("on_fit_end")
