"""Attachment to the training step of an unmodified LightningModule: reads the network's calls and changes the loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import lightning.pytorch as pl
from torch import Tensor, nn

from prunerecover.callbacks.distillation.first_call import FirstCall
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
        self.tap = FirstCall(network)
        self._forget = forget
        self._wrapper = (_Step if module.automatic_optimization else _Backward)(self, add_term)

    def begin_step(self) -> None:
        """Forget calls of the network outside training steps."""
        self.tap.take()
        self._forget()

    def detach(self) -> None:
        """Restore the module's own method."""
        self.tap.detach()
        self._wrapper.detach()


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
