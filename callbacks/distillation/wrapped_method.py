"""Replacement of a method of an unmodified LightningModule, such as its training step inside a context."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import lightning.pytorch as pl


class WrappedMethod:
    """Callable in the place of a method on the instance, until `detach`; copies of the module have the plain method.

    `__wrapped__` lets Lightning see the signature of the original. Subclasses define the call.

    Args:
        module: LightningModule of the method.
        name: Name of the method.
    """

    def __init__(self, module: pl.LightningModule, name: str) -> None:
        self.module, self.name = module, name
        self.own = getattr(type(module), name)
        self.previous = vars(module).get(name)
        self.__wrapped__ = inspect.unwrap(self.own)
        object.__setattr__(module, name, self)

    def original(self, *args: Any, **kwargs: Any) -> Any:
        """Call the replaced method."""
        if self.previous is not None:
            return self.previous(*args, **kwargs)
        return self.own(self.module, *args, **kwargs)

    def detach(self) -> None:
        """Restore the replaced method."""
        vars(self.module).pop(self.name, None)
        if self.previous is not None:
            object.__setattr__(self.module, self.name, self.previous)

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[..., Any]:
        return functools.partial(self.own, memo.get(id(self.module), self.module))


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
