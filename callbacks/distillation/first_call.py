"""Forward hook that keeps the first call of a module in a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from prunerecover.model.batches import ModelInputs


class FirstCall:
    """Inputs and output of a module's first call, kept until taken: a step may call the module more than once.

    Copies of the module do not copy the hook.

    Args:
        module: Module to watch, until `detach`.
        gradients: Whether calls with gradients count, or calls without.
    """

    def __init__(self, module: nn.Module, gradients: bool = True) -> None:
        self.seen: tuple[ModelInputs, Any] | None = None
        self.gradients = gradients
        self._handle = module.register_forward_hook(self, with_kwargs=True)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Note the call."""
        if self.seen is None and torch.is_grad_enabled() == self.gradients:
            self.seen = (ModelInputs(args, dict(kwargs)), output)

    def take(self) -> tuple[ModelInputs, Any] | None:
        """Return the kept call, and forget it."""
        seen, self.seen = self.seen, None
        return seen

    def detach(self) -> None:
        """Remove the hook."""
        self._handle.remove()

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[..., None]:
        return _nothing


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Replace the hook in a copied module."""
