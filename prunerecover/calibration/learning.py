"""Gradient descent on the output divergence, starting from values fitted layer by layer.

Least squares weighs all directions of a hidden state alike; the rest of the network reads some directions more than
others. From the fitted values, Adam (Kingma and Ba, arXiv 1412.6980) minimises the output divergence on calibration
samples, over all values together: distillation without labels. The best epoch is kept.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn

from prunerecover.calibration.steps import Steps, judged_output, rows_of
from prunerecover.display.progress import progress
from prunerecover.divergence.outputs import Outputs
from prunerecover.divergence.registry import output_divergence
from prunerecover.model.batches import ModelInputs
from prunerecover.model.evaluation import evaluating, uncompiled
from prunerecover.store.ranks import PARTS, Spread, by_itself

EPOCHS, FEWEST = 4, 2  # of learning, at most and at least
TAKEN = 320  # steps of all epochs, about: more samples gain more than more epochs
RATES = (2e-2, 3e-3, 1e-3, 4e-4)  # first change of a weight in a step, relative to its size: the largest that helps
FIRST = 1.1  # divergence allowed after the first steps, relative to the start: later steps are smaller
BIAS = 4e-4  # likewise, of a bias
SMALLEST = 1e-3  # size of a parameter, for its steps, at least
Key = TypeVar("Key")


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
        parameter: The parameter.
    """

    value: Tensor
    rate: float
    parameter: nn.Parameter

    @classmethod
    def of(cls, parameter: nn.Parameter, value: Tensor, rate: float, *, is_bias: bool = False) -> Held:
        """Return the value to learn for a parameter, with steps relative to its size; the parameter receives gradients.

        Args:
            parameter: The parameter.
            value: Fitted value.
            rate: First change in a step, relative to the size.
            is_bias: Whether it is a bias, with a rate of its own.
        """
        parameter.requires_grad_()
        size = max(float(value.float().square().mean().sqrt()), SMALLEST)
        step = (BIAS if is_bias else rate) * size
        return cls(value.detach().to(parameter.device, torch.float32, copy=True), step, parameter)

    @property
    def source(self) -> Tensor:
        """The parameter."""
        return self.parameter

    def take_gradient(self, gradient: Tensor) -> None:
        """Set the gradient of the value."""
        self.value.grad = gradient.float()

    @torch.no_grad()
    def put_in_place(self) -> None:
        """Have the parameter hold the value."""
        self.parameter.copy_(self.value)


def best_epoch(
    learnt: Sequence[Learnt],
    epochs: int,
    batches: int,
    gradients: Callable[[int], Sequence[Tensor]],
    divergence: Callable[[], float],
    *,
    first: float = math.inf,
    check: int | None = None,
    what: str = "what was fitted",
) -> tuple[float, list[Tensor]]:
    """Return the least divergence, and the values of that epoch or none if no epoch is better than the start.

    Args:
        learnt: Values to learn.
        epochs: Number of epochs.
        batches: Steps per epoch.
        gradients: Gradients of the sources on the batch of a number; an empty sequence ends the learning.
        divergence: Output divergence with the values in place, on other samples.
        first: Allowed divergence after the first steps, relative to the start; above it, learning ends.
        check: Number of the first steps; None: an epoch.
        what: The values, for the progress line.
    """
    optimizer = torch.optim.Adam([{"params": [one.value], "lr": one.rate} for one in learnt])
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * batches)
    start, kept = divergence(), list[Tensor]()
    found = start
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
            if reached < found:
                found = reached
                kept = [one.value.detach().clone() for one in learnt]
            advance()
    return found, kept


def tuned_on_output(
    network: nn.Module,
    learnt: Sequence[Learnt],
    steps: Steps,
    divergence: Callable[[], float],
    *,
    first: float = math.inf,
    what: str = "what was fitted",
    spread: Spread = by_itself,
) -> tuple[float, list[Tensor]]:
    """Learn values towards the dense output; see `best_epoch`.

    Args:
        network: Pruned, with the values in place.
        learnt: Values to learn.
        steps: Samples of each step.
        divergence: See `best_epoch`.
        first: Allowed divergence after the first steps.
        what: The values, for the progress line.
        spread: Sharing of the parts of a step among ranks; see `Spread`.
    """
    sources = [one.source for one in learnt]

    def gradients(number: int) -> Sequence[Tensor]:
        parts = steps.parts(number)

        def of_part(part: int) -> tuple[float, tuple[Tensor, ...]]:
            dense = steps.dense.of(PARTS * number + part)
            return float(rows_of(dense)), gradients_of_output(network, parts[part], dense, sources)

        with evaluating(network), uncompiled(recurrent=True):
            return _mean(spread(f"gradients {number}", len(parts), of_part))

    check, batches = steps.first if math.isfinite(first) else None, len(steps.batches)
    epochs = min(EPOCHS, max(FEWEST, round(TAKEN / batches)))
    return best_epoch(learnt, epochs, batches, gradients, divergence, first=first, check=check, what=what)


def tuned_parameters(
    network: nn.Module,
    parameters: Mapping[Key, nn.Parameter],
    values: Mapping[Key, Tensor],
    steps: Steps,
    divergence: Callable[[], float],
    is_bias: Callable[[Key], bool],
    spread: Spread = by_itself,
) -> dict[Key, Tensor]:
    """Return the values of parameters tuned on the output, or none without gradients or without a better epoch.

    Args:
        network: Pruned, with fitted values in place.
        parameters: Parameters of the network, by key; they change.
        values: Fitted values, by key.
        steps: Samples of each step.
        divergence: Divergence of the network's output on held-out samples.
        is_bias: Whether the parameter of a key is a bias.
        spread: Sharing of the parts of a step among ranks; see `Spread`.
    """
    with evaluating(network), uncompiled(recurrent=True):
        sources = [parameter.requires_grad_() for parameter in parameters.values()]
        dense = steps.dense.of(0)
        (takes,) = spread(
            "first gradients", 1, lambda _: bool(gradients_of_output(network, steps.parts(0)[0], dense, sources))
        )
        if not takes:
            return {}

    def learn(held: Mapping[Key, Held]) -> tuple[float, list[Tensor]]:
        return tuned_on_output(network, list(held.values()), steps, divergence, first=FIRST, spread=spread)

    return at_the_rate_that_helps(parameters, values, RATES, learn, is_bias)[1]


def at_the_rate_that_helps(
    parameters: Mapping[Key, nn.Parameter],
    values: Mapping[Key, Tensor],
    rates: Sequence[float],
    learn: Callable[[Mapping[Key, Held]], tuple[float, list[Tensor]]],
    is_bias: Callable[[Key], bool] = lambda _: False,
) -> tuple[float, dict[Key, Tensor]]:
    """Return what learning comes to at the first rate that helps, and the learnt values, or none if no rate does.

    Networks bear steps of very different size.

    Args:
        parameters: Parameters, by key; they change.
        values: Values at the start, by key.
        rates: Rates to try, from large to small; see `Held.of`.
        learn: See `best_epoch`, as for the result.
        is_bias: Whether the parameter of a key is a bias.
    """
    reached = math.inf
    for rate in rates:
        held = {key: Held.of(parameters[key], value, rate, is_bias=is_bias(key)) for key, value in values.items()}
        for one in held.values():
            one.put_in_place()
        reached, best = learn(held)
        if best:
            return reached, dict(zip(held, best, strict=True))
    return reached, {}


def _mean(parts: Sequence[tuple[float, Sequence[Tensor]]]) -> list[Tensor]:
    """Return the mean of gradients of parts, weighted; none if a part with outputs has none, or without outputs."""
    parts = [part for part in parts if part[0]]
    total = sum(weight for weight, _ in parts)
    if not total or not all(gradients for _, gradients in parts):
        return []
    weighted = [[weight / total * gradient for gradient in gradients] for weight, gradients in parts]
    return [sum(alike[1:], start=alike[0]) for alike in zip(*weighted, strict=True)]


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
