"""Run the training step of an unmodified LightningModule inside a context."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import lightning.pytorch as pl


class StepContext:
    """Wraps `training_step` on the instance, until `detach`; copies of the module have the plain one.

    Args:
        module: The LightningModule.
        context: Returns what each step runs in.
    """

    def __init__(self, module: pl.LightningModule, context: Callable[[], AbstractContextManager[Any]]) -> None:
        self.module, self.context = module, context
        self.own = type(module).training_step
        self.previous = vars(module).get("training_step")
        self.__wrapped__ = inspect.unwrap(self.own)  # lets Lightning see the signature of the original
        object.__setattr__(module, "training_step", self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step."""
        with self.context():
            if self.previous is not None:
                return self.previous(*args, **kwargs)
            return self.own(self.module, *args, **kwargs)

    def detach(self) -> None:
        """Leave the module as it was."""
        vars(self.module).pop("training_step", None)
        if self.previous is not None:
            object.__setattr__(self.module, "training_step", self.previous)

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[..., Any]:
        return functools.partial(self.own, memo.get(id(self.module), self.module))
