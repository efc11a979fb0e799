"""Values learnt on a network's output: what was fitted by least squares, layer by layer, goes on from there.

Least squares makes a hidden state alike in every direction; the rest of the network reads some directions and not
others. From that solution on, Adam (Kingma and Ba, arXiv 1412.6980) minimises the output divergence on calibration
samples, for all values together, as distillation without labels. Of all epochs the one is kept that is best.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from prunerecover.display.progress import progress
from prunerecover.divergence.outputs import Outputs, compared, unpadded
from prunerecover.divergence.registry import output_divergence
from prunerecover.model.batches import ModelInputs, call

EPOCHS = 4
SAMPLES = 4  # of a step at most: a few large steps bring nothing where much goes
WORSE = 1.1  # times what was solved, which what is learnt may cost on held-out samples: forms were chosen on these
AFFINE, SLOPE, BIAS = 0.8, 0.08, 0.02  # over all steps; for a map's weight, per width too, and single numbers


class Learnt(Protocol):
    """A value that is learnt."""

    @property
    def value(self) -> Tensor:
        """What Adam steps, in single precision."""

    @property
    def rate(self) -> float:
        """Adam's rate."""

    @property
    def source(self) -> Tensor:
        """What gradients are taken of."""

    def take_gradient(self, gradient: Tensor) -> None:
        """Set the gradient of the value, given that of the source."""

    def put_in_place(self) -> None:
        """Have the network hold the value."""


@dataclass(frozen=True, eq=False)
class Held:
    """A value that a parameter is kept equal to.

    Attributes:
        value: In single precision.
        rate: Adam's.
        parameter: The parameter; None: the network reads the value itself.
    """

    value: Tensor
    rate: float
    parameter: nn.Parameter | None = None

    @classmethod
    def of(cls, module: nn.Module, name: str, value: Tensor, steps: float) -> Held:
        """Return what is learnt of a parameter of a fitted stand-in, which takes gradients from now on.

        Args:
            module: The stand-in.
            name: Of the parameter.
            value: As it was fitted.
            steps: How many there are in all; fewer for a higher rate.
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
    what: str = "what removed units leave",
) -> tuple[float, list[Tensor]]:
    """Return the least divergence and the values of that epoch; none if no epoch is better than the start.

    Args:
        learnt: What is learnt.
        epochs: How many there are.
        batches: How many steps an epoch has.
        gradients: Of the sources on the batch of a number; none ends it there.
        divergence: Of the output with the values in place, on other samples.
        worse: Times the divergence at the start that the best epoch may have: the start was chosen by it.
        first: Times the divergence at the start that the first epoch may have; with more, learning ends there.
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
            reached = divergence()
            if epoch == 0 and reached > first * start:
                break
            if reached < limit:
                found = limit = reached
                kept = [one.value.detach().clone() for one in learnt]
            advance()
    return found, kept


def gradients_of_output(
    network: nn.Module, batch: ModelInputs, dense: Outputs, sources: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Return those of the output's divergence; none if it has none, they are not finite, or the pass fails.

    Args:
        network: Pruned, in evaluation mode.
        batch: What it is run on.
        dense: The dense network's output on it.
        sources: What gradients are taken of.
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
    """Return the part of a network's output that is judged, without padding."""
    return unpadded(compared(call(network, batch)), batch)
