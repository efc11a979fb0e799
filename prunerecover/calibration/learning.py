"""Gradient descent on the output divergence, starting from values fitted layer by layer.

Least squares weighs all directions of a hidden state alike; the rest of the network reads some directions more than
others. From the fitted values, Adam (Kingma and Ba, arXiv 1412.6980) minimises the output divergence on calibration
samples, over all values together: distillation without labels. The best epoch is kept.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from prunerecover.display.progress import progress
from prunerecover.divergence.kept_outputs import KeptOutputs
from prunerecover.divergence.outputs import Outputs, compared, unpadded
from prunerecover.divergence.registry import output_divergence
from prunerecover.model.batches import ModelInputs, call
from prunerecover.model.evaluation import evaluating, uncompiled

EPOCHS = 4
SAMPLES = 4  # largest number per step: a few large steps do not help where much is removed
WORSE = 1.1  # allowed divergence on held-out samples, relative to the fit: forms were chosen on these samples
AFFINE, SLOPE, BIAS = 0.8, 0.08, 0.02  # rates over all steps; of a map's weight, divided by the width


class Learnt(Protocol):
    """Value with a learning rate."""

    @property
    def value(self) -> Tensor:
        """Optimised tensor, in single precision."""

    @property
    def rate(self) -> float:
        """Adam's rate."""

    @property
    def source(self) -> Tensor:
        """Tensor in the network's graph, for gradients."""

    def take_gradient(self, gradient: Tensor) -> None:
        """Set the gradient of the value from the gradient of the source."""

    def put_in_place(self) -> None:
        """Have the network hold the value."""


@dataclass(frozen=True, eq=False)
class Held:
    """Value in single precision, copied to a parameter.

    Attributes:
        value: The optimised tensor, in single precision.
        rate: Adam's.
        parameter: The parameter; None: the network reads the value itself.
    """

    value: Tensor
    rate: float
    parameter: nn.Parameter | None = None

    @classmethod
    def of(cls, module: nn.Module, name: str, value: Tensor, steps: float) -> Held:
        """Return the value to learn for a parameter of a fitted replacement; the parameter receives gradients.

        Args:
            module: The stand-in.
            name: Name of the parameter.
            value: Fitted value.
            steps: Number of all steps; fewer steps get a higher rate.
        """
        parameter = module.get_parameter(name)
        parameter.requires_grad_()
        rate = {"weight": AFFINE / value.shape[-1], "slope": SLOPE, "bias": BIAS}[name]
        return cls(value.detach().to(parameter.device, torch.float32, copy=True), rate / steps, parameter)

    @property
    def source(self) -> Tensor:
        """The parameter, or the value itself."""
        return self.value if self.parameter is None else self.parameter

    def take_gradient(self, gradient: Tensor) -> None:
        """Set the gradient of the value."""
        self.value.grad = gradient.float()

    @torch.no_grad()
    def put_in_place(self) -> None:
        """Have the parameter hold the value."""
        if self.parameter is not None:
            self.parameter.copy_(self.value)


def best_epoch(
    learnt: Sequence[Learnt],
    epochs: int,
    batches: int,
    gradients: Callable[[int], Sequence[Tensor]],
    divergence: Callable[[], float],
    *,
    worse: float = 1.0,
    first: float = math.inf,
    check: int | None = None,
    what: str = "what removed units leave",
) -> tuple[float, list[Tensor]]:
    """Return the least divergence, and the values of that epoch or none if no epoch is better than the start.

    Args:
        learnt: Values to learn.
        epochs: Number of epochs.
        batches: Steps per epoch.
        gradients: Gradients of the sources on the batch of a number; an empty sequence ends the learning.
        divergence: Output divergence with the values in place, on other samples.
        worse: Allowed divergence of the best epoch, relative to the start: choices made on the same samples favour the
            start.
        first: Allowed divergence after the first steps, relative to the start; above it, learning ends.
        check: Number of the first steps; None: an epoch.
        what: The values, for the progress line.
    """
    optimizer = torch.optim.Adam([{"params": [one.value], "lr": one.rate} for one in learnt])
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * batches)
    start, kept = divergence(), list[Tensor]()
    found, limit = start, worse * start
    with progress(f"tuning {what}", epochs) as advance:
        for epoch in range(epochs):
            for number in range(batches):
                own = gradients(number)
                if not own:
                    return found, kept
                for one, gradient in zip(learnt, own, strict=True):
                    one.take_gradient(gradient)
                optimizer.step()
                scheduler.step()
                for one in learnt:
                    one.put_in_place()
                if epoch == 0 and number + 1 == check != batches and divergence() > first * start:
                    return found, kept
            reached = divergence()
            if epoch == 0 and reached > first * start:
                break
            if reached < limit:
                found = limit = reached
                kept = [one.value.detach().clone() for one in learnt]
            advance()
    return found, kept


def tuned_on_output(
    network: nn.Module,
    learnt: Sequence[Learnt],
    steps: Sequence[ModelInputs],
    dense: KeptOutputs,
    divergence: Callable[[], float],
    *,
    epochs: int = EPOCHS,
    worse: float = 1.0,
    first: float = math.inf,
    check: int | None = None,
    what: str = "what removed units leave",
) -> tuple[float, list[Tensor]]:
    """Learn values towards the dense output; see `best_epoch`.

    Args:
        network: Pruned, with the values in place.
        learnt: Values to learn.
        steps: Samples of each step.
        dense: Outputs of the dense network by step; see `dense_outputs`.
        divergence: See `best_epoch`, as all further arguments.
        epochs: Number of epochs.
        worse: Allowed divergence of the best epoch.
        first: Allowed divergence after the first steps.
        check: Number of the first steps.
        what: The values, for the progress line.
    """
    sources = [one.source for one in learnt]

    def gradients(number: int) -> tuple[Tensor, ...]:
        with evaluating(network), uncompiled(recurrent=True):
            return gradients_of_output(network, steps[number], dense.of(number), sources)

    allowed: dict[str, Any] = {"worse": worse, "first": first, "check": check}
    return best_epoch(learnt, epochs, len(steps), gradients, divergence, **allowed, what=what)


def dense_outputs(model: nn.Module, steps: Sequence[ModelInputs]) -> KeptOutputs:
    """Return the compared outputs of the dense network on the samples of each step."""

    def output(number: int) -> Outputs:
        with evaluating(model), uncompiled(recurrent=True):
            return judged_output(model, steps[number])

    return KeptOutputs(output)


def gradients_of_output(
    network: nn.Module, batch: ModelInputs, dense: Outputs, sources: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Return the gradients of the output divergence; none if missing, not finite, or the pass fails.

    Args:
        network: Pruned, in evaluation mode.
        batch: Input batch.
        dense: Output of the dense network on the batch.
        sources: Tensors to differentiate by.
    """
    try:
        with torch.enable_grad():
            loss = output_divergence(dense, judged_output(network, batch))
        gradients = torch.autograd.grad(loss, sources, materialize_grads=True) if loss.requires_grad else ()
    except torch.OutOfMemoryError:
        warnings.warn(
            "There is no memory to tune what stands in for removed units: it stays as least squares say. Pass smaller "
            "batches.",
            stacklevel=2,
        )
        return ()
    except Exception:  # an operation in place, one without a backward pass, another shape: least squares stay
        return ()
    return gradients if all(bool(gradient.isfinite().all()) for gradient in gradients) else ()


def judged_output(network: nn.Module, batch: ModelInputs) -> Outputs:
    """Return the compared part of a network's output, without padding."""
    return unpadded(compared(call(network, batch)), batch)
