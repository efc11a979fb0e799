"""Attachment to the training step of an unmodified LightningModule: reads the network's calls and changes the loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn

from prunerecover.callbacks.distillation.wrapped_method import WrappedMethod
from prunerecover.model.batches import ModelInputs

AddTerm = Callable[[pl.LightningModule, Tensor, ModelInputs, Any], Tensor]


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
        self.module = module
        self.tap = Tap()
        self._forget = forget
        self._handle = network.register_forward_hook(self.tap, with_kwargs=True)
        self._wrapper = (_Step if module.automatic_optimization else _Backward)(self, add_term)

    def begin_step(self) -> None:
        """Forget calls of the network outside training steps."""
        self.tap.take()
        self._forget()

    def detach(self) -> None:
        """Restore the module's own method."""
        self._handle.remove()
        self._wrapper.detach()


class Tap:
    """Forward hook that keeps the first call with gradients until taken; copies of a network do not copy the hook."""

    def __init__(self) -> None:
        self.seen: tuple[ModelInputs, Any] | None = None

    def __call__(self, network: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Note the call."""
        if self.seen is None and torch.is_grad_enabled():
            self.seen = (ModelInputs(args, dict(kwargs)), output)

    def take(self) -> tuple[ModelInputs, Any] | None:
        """Return the kept call, and forget it."""
        seen, self.seen = self.seen, None
        return seen

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[..., None]:
        return _nothing


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Replace the tap in a copied network."""


class _WithTerm(WrappedMethod):
    """Method, by name, through which the loss passes."""

    name: str

    def __init__(self, student: Student, add_term: AddTerm) -> None:
        super().__init__(student.module, self.name)
        self.student, self.add_term = student, add_term

    def with_term(self, loss: Tensor) -> Tensor:
        """Return the loss with the term if the network was called."""
        seen = self.student.tap.take()
        return loss if seen is None else self.add_term(self.module, loss, *seen)


class _Step(_WithTerm):
    name = "training_step"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.student.begin_step()
        output = self.original(*args, **kwargs)
        if isinstance(output, Mapping):
            return {**output, "loss": self.with_term(output["loss"])}
        return output if output is None else self.with_term(output)


class _Backward(_WithTerm):
    name = "manual_backward"

    def __call__(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        self.original(self.with_term(loss), *args, **kwargs)
