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
