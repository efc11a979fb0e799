"""Attachment to the training step of an unmodified LightningModule: reads the network's calls and changes the loss."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn

from prunerecover.model.batches import ModelInputs

AddTerm = Callable[[pl.LightningModule, Tensor, ModelInputs, Any], Tensor]


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


class Student:
    """Training step with a term added to the loss, until `detach`.

    Args:
        module: LightningModule; `training_step` (automatic optimization) or `manual_backward` is wrapped on the
            instance.
        network: Network inside the module whose first call in each step is read.
        add_term: Function `add_term(module, loss, inputs, output) -> loss`.
        forget: Function called at the beginning of each step, when `self.tap` is emptied, too: calls before the step do
            not belong to the step.
    """

    def __init__(
        self, module: pl.LightningModule, network: nn.Module, add_term: AddTerm, forget: Callable[[], None]
    ) -> None:
        self.module, self.add_term = module, add_term
        self.tap = FirstCall(network)
        self._forget = forget
        name, call = ("training_step", self._step) if module.automatic_optimization else ("manual_backward", self._back)
        self._wrapper = WrappedMethod(module, name, call)

    def begin_step(self) -> None:
        """Forget calls of the network outside training steps."""
        self.tap.take()
        self._forget()

    def detach(self) -> None:
        """Restore the module's own method."""
        self.tap.detach()
        self._wrapper.detach()

    def _with_term(self, loss: Tensor) -> Tensor:
        """Return the loss with the term if the network was called."""
        seen = self.tap.take()
        return loss if seen is None else self.add_term(self.module, loss, *seen)

    def _step(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.begin_step()
        output = original(*args, **kwargs)
        if isinstance(output, Mapping):
            return {**output, "loss": self._with_term(output["loss"])}
        return output if output is None else self._with_term(output)

    def _back(self, original: Callable[..., Any], loss: Tensor, *args: Any, **kwargs: Any) -> None:
        original(self._with_term(loss), *args, **kwargs)
