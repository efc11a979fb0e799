"""Replacement of a method of an unmodified LightningModule, such as its training step inside a context."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl


class WrappedMethod:
    """Callable in the place of a method on the instance, until `detach`; copies of the module have the plain method.

    `__wrapped__` lets Lightning see the signature of the original.

    Args:
        module: LightningModule of the method.
        name: Name of the method.
        call: Function `call(original, *args, **kwargs)` that runs in the place of the method.
    """

    def __init__(self, module: pl.LightningModule, name: str, call: Callable[..., Any]) -> None:
        self.module, self.name, self.call = module, name, call
        self.own = getattr(type(module), name)
        self.previous = vars(module).get(name)
        self.__wrapped__ = inspect.unwrap(self.own)
        object.__setattr__(module, name, self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function with the replaced method."""
        original = self.previous or functools.partial(self.own, self.module)
        return self.call(original, *args, **kwargs)

    def detach(self) -> None:
        """Restore the replaced method."""
        vars(self.module).pop(self.name, None)
        if self.previous is not None:
            object.__setattr__(self.module, self.name, self.previous)

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[..., Any]:
        return functools.partial(self.own, memo.get(id(self.module), self.module))
