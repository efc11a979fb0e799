"""Importances from gradients: Taylor scores, R-Score and gate-Taylor.

All but gate-Taylor read the weights of each unit, in depth and in width alike.

Gradients are taken in evaluation mode. In training mode the weights in front of a BatchNorm are free of scale, and the
sum of w dL/dw over a channel is zero but for rounding.

Losses are means over the batch; sums are rescaled by the number of samples, for scores independent of the batch size
and of a smaller last batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import Parameter

from prunerecover.importance.context import Context
from prunerecover.importance.measuring.activations import Consumer, TapCall
from prunerecover.importance.measuring.unit_slices import Scores
from prunerecover.importance.streaming import OnePass, StreamedImportance
from prunerecover.model.checks import check_differentiable
from prunerecover.plan.groups import Group


@StreamedImportance
def taylor(context: Context) -> MeanTaylor:
    """Score units by sum |w dL/dw| over the weights of each unit, dL/dw averaged over the samples.

    Molchanov et al. 2019 (arXiv 1906.10771), as used for whole blocks by Shortened LLaMA (arXiv 2402.02834, "Taylor+").

    Raises:
        ValueError: If there is no loss, the loss depends on none of the weights, or the weights take no gradients.
    """
    return MeanTaylor(context, "taylor", Tensor.abs)


@StreamedImportance
def squared_taylor(context: Context) -> MeanTaylor:
    """Score units by sum (w dL/dw)^2 over the weights of each unit, dL/dw averaged over the samples.

    Molchanov et al. 2019, equation 8, as in the thesis on fine-grained depth pruning (Delft 2025).

    Raises:
        ValueError: See `taylor`.
    """
    return MeanTaylor(context, "squared_taylor", Tensor.square)


@StreamedImportance
def r_score(context: Context) -> WeightTaylor:
    """Score units by |sum of w dL/dw| over the weights of each unit: the R-Score of arXiv 2508.02291.

    The sum is signed within a unit and over all samples; the absolute value is taken once, at the end. The score is the
    first-order change of the mean loss when all weights of the unit go to zero together. High means sensitive.

    Raises:
        ValueError: See `taylor`.
    """
    return WeightTaylor(context, "r_score")


@StreamedImportance
def gate_taylor(context: Context) -> GateTaylor:
    """Score units by the mean over samples of |sum over positions of o dL/do|, o the output at the group's taps.

    The inner sum is the gradient of a gate on the unit (Molchanov et al. 2019, arXiv 1906.10771, "Taylor-FO-BN" on
    gates), per sample; the absolute values are summed over the taps. High means keep. Molchanov et al. take squares;
    absolute values kept 1 to 2.5 points more of a ResNet-20's accuracy on training images, recalibrated. The score of a
    head is the sum over its channels, each with a separate gate. In the gradient of a single gate the channels cancel,
    which ranks heads far too low beside neurons.

    Raises:
        ValueError: If there is no loss, a group has no tap, or the loss depends on no unit.
    """
    return GateTaylor(context.require_groups("gate_taylor"))


class MeanGradients(Consumer):
    """Gradients of parameters averaged over samples; zero for parameters without a gradient.

    Args:
        parameters: Parameters to average the gradients of.
        dtype: Dtype of the sums; None: the dtype of each parameter.
    """

    def __init__(self, parameters: Sequence[Parameter], dtype: torch.dtype | None = None) -> None:
        self.parameters, self.samples = parameters, 0
        self.sums = {p: torch.zeros_like(p, dtype=dtype, requires_grad=False) for p in parameters}

    def end(self, n: int, gates: dict[TapCall, Tensor], gradients: dict[Parameter, Tensor]) -> None:
        """Add the gradients of a batch.

        Args:
            n: Samples in the batch.
            gates: Not read.
            gradients: Gradients of the mean loss, by parameter.
        """
        for parameter, gradient in gradients.items():
            if parameter in self.sums:
                self.sums[parameter] += n * gradient
        self.samples += n

    def mean(self, parameter: Parameter) -> Tensor:
        """Return the gradient of the mean loss."""
        return self.sums[parameter] / self.samples


class MeanTaylor(MeanGradients, OnePass):
    """Sum per unit of a function of w dL/dw, with the gradient averaged over all batches first."""

    def __init__(self, context: Context, name: str, of: Callable[[Tensor], Tensor]) -> None:
        context.require_loss(name)
        check_differentiable(context.model)
        super().__init__(context.weights, torch.float64)
        self.context, self.of = context, of

    def scores(self) -> Scores:
        """Return the sums."""
        return self.context.sum_weights(lambda weight: self.of(weight.detach().double() * self.mean(weight)))


class WeightTaylor(OnePass):
    """Signed sum of w dL/dw per unit, added batch by batch without keeping gradients."""

    def __init__(self, context: Context, name: str) -> None:
        context.require_loss(name)
        self.context, self.parameters, self.samples = context, context.weights, 0
        self.sums = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in context.shapes.items()}

    def end(self, n: int, gates: dict[TapCall, Tensor], gradients: dict[Parameter, Tensor]) -> None:
        """Add the products of a batch.

        Args:
            n: Samples in the batch.
            gates: Not read.
            gradients: Gradients of the mean loss, by parameter.
        """
        own = self.context.sum_weights(lambda w: n * (w.detach() * gradients[w]) if w in gradients else None)
        for name, total in self.sums.items():
            total += own[name]
        self.samples += n

    def scores(self) -> Scores:
        """Return the absolute values, per sample."""
        return {name: total.abs() / self.samples for name, total in self.sums.items()}


class GateTaylor(OnePass):
    """Sum of the absolute gradients of the gates."""

    gated = True

    def __init__(self, groups: Sequence[Group]) -> None:
        for group in groups:
            if not group.taps:
                raise ValueError(
                    f"Expected a tap where the units of '{group.name}' can be gated, but the group has none. "
                    "Leave it out, or score it by weights ('magnitude', 'r_score')."
                )
        self.sums = {group.name: torch.zeros(group.size, dtype=torch.float64) for group in groups}
        self.samples = 0

    def end(self, n: int, gates: dict[TapCall, Tensor], gradients: dict[Parameter, Tensor]) -> None:
        """Add a batch; `n` times the gradient of the mean loss is the gradient of the sample's loss.

        Args:
            n: Samples in the batch.
            gates: Gradients of the gates by tap, `(n, size * channels per unit)`.
            gradients: Not read.
        """
        for tap_call, gradient in gates.items():
            own = self.sums[tap_call.group]
            own += (n * gradient).double().abs().sum(0).view(len(own), -1).sum(1).cpu()
        self.samples += n

    def scores(self) -> Scores:
        """Return the means over samples."""
        return {name: total / self.samples for name, total in self.sums.items()}
