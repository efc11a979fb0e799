"""Importance by the first-order effect of the weights on the loss.

Molchanov et al. 2019 (arXiv 1906.10771), as Shortened LLaMA (arXiv 2402.02834, "Taylor+") uses it for whole blocks:
sum |w dL/dw| over the unit's parameters, dL/dw averaged over the calibration samples. For activations over the two
linears around it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from prunerecover.importance.context import DepthContext, Loss, UnitScores
from prunerecover.importance.losses import loss_of
from prunerecover.importance.parameters import unit_parameters
from prunerecover.model.batches import as_inputs
from prunerecover.model.checks import check_differentiable
from prunerecover.model.evaluation import evaluating
from prunerecover.model.paths import unwrap


def taylor(context: DepthContext) -> UnitScores:
    """Rank units by sum |w dL/dw|. Higher means keep.

    The model is judged in evaluation mode, and no `.grad` is written.

    Raises:
        ValueError: If there is no loss, it depends on none of the parameters, or these take no gradients.
    """
    model, loss = unwrap(context.model), context.require_loss("taylor")
    check_differentiable(model)
    owned = unit_parameters(model, context.units)
    parameters = list(dict.fromkeys(p for own in owned.values() for p in own))
    with evaluating(model), trainable(parameters):
        gradients = mean_gradients(model, parameters, context.batches, loss)
    salience = {p: float((p.detach().double() * g).abs().sum()) for p, g in zip(parameters, gradients, strict=True)}
    return {name: sum(salience[p] for p in own) for name, own in owned.items()}


@contextmanager
def trainable(parameters: Sequence[Parameter]) -> Iterator[None]:
    """Have gradients flow to parameters, also frozen ones, inside a `with` block."""
    flags = [p.requires_grad for p in parameters]
    try:
        for parameter in parameters:
            parameter.requires_grad_(True)
        yield
    finally:
        for parameter, flag in zip(parameters, flags, strict=True):
            parameter.requires_grad_(flag)


def mean_gradients(
    model: nn.Module, parameters: Sequence[Parameter], batches: Sequence[Any], loss: Loss
) -> list[Tensor]:
    """Return dL/dw in float64, averaged over the samples; zeros for parameters that the loss does not depend on.

    Args:
        model: Unwrapped, in the mode that it is judged in.
        parameters: That gradients flow to.
        batches: Calibration batches.
        loss: `loss(model, batch) -> scalar`.

    Raises:
        ValueError: If it depends on none of the parameters.
    """
    sums = [torch.zeros_like(p, dtype=torch.float64) for p in parameters]
    samples, used = 0, False
    for batch in batches:
        n = as_inputs(batch).n_samples
        with torch.enable_grad():
            gradients = torch.autograd.grad(loss_of(model, batch, loss), parameters, allow_unused=True)
        for total, gradient in zip(sums, gradients, strict=True):
            if gradient is not None:
                total += n * gradient
                used = True
        samples += n
    if not used:
        raise ValueError(
            "Expected a loss that depends on the units' parameters, but no gradient reached any. "
            "Does loss(model, batch) run the model that it is given?"
        )
    return [total / samples for total in sums]
