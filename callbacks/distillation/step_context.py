"""The training step of an unmodified LightningModule, run inside a context."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import lightning.pytorch as pl

from prunerecover.callbacks.distillation.wrapped_method import WrappedMethod


class StepContext(WrappedMethod):
    """Wrapper of `training_step` on the instance, until `detach`.

    Args:
        module: LightningModule with the training step.
        context: Function that returns a context manager for each step.
    """

    def __init__(self, module: pl.LightningModule, context: Callable[[], AbstractContextManager[Any]]) -> None:
        super().__init__(module, "training_step")
        self.context = context

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step."""
        with self.context():
            return self.original(*args, **kwargs)
