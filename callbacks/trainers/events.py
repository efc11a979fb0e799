"""Events of a transformers Trainer, passed on to the callbacks that are attached to it."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from prunerecover.callbacks.trainers.fit import Fit


class Events(TrainerCallback):  # type: ignore[misc]
    """Calls the hooks of attached callbacks.

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
        """Do the surgeries that are due."""
        self.fit.current_epoch += 1
        self.fit.call("on_train_epoch_start")

    def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Begin a step; to a schedule that counts steps it is what an epoch is to others."""
        self.fit.call("on_train_epoch_start", callbacks=self.fit.by_step)
        self.fit.call("on_train_batch_start", None, self.fit.batch_index)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """End an epoch."""
        self.fit.call("on_train_epoch_end")

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Detach, and write a merged copy."""
        self.fit.call("on_train_end")
        self.fit.call("on_fit_end")
