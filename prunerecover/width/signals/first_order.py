"""Signals from gradients: R-Score, gate-Taylor and the diagonal of the Fisher matrix.

All are taken in evaluation mode. In training mode the weights in front of a BatchNorm are free of scale, so that the
sum of w dL/dw over a channel is zero but for rounding.

Losses are means over the batch; everything is rescaled by the number of samples, so that neither the size of the
batches nor a smaller last one matters.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from prunerecover.model.paths import unwrap
from prunerecover.plan.groups import Group
from prunerecover.width.groups.unit_slices import Scores, check_names, made_parameters, sum_per_unit
from prunerecover.width.signals.activations import SiteCall
from prunerecover.width.signals.context import WidthContext
from prunerecover.width.signals.streaming import OnePass, StreamedSignal


@StreamedSignal
def r_score(context: WidthContext) -> WeightTaylor:
    """Score units by |sum of w dL/dw| over the weights that make them: the R-Score of arXiv 2508.02291.

    The sum is signed within a unit and over all samples; the absolute value is taken once, at the end. It is the
    first-order change of the mean loss when the unit's weights go to zero together. High means sensitive.

    Raises:
        ValueError: If there is no loss, or it depends on none of the weights.
    """
    return WeightTaylor(unwrap(context.model), context.groups)


@StreamedSignal
def fisher(context: WidthContext) -> FisherDiagonal:
    """Score units by the sum of w^2 times the mean of (dL/dw)^2: Optimal Brain Damage with the empirical Fisher.

    One gradient per batch is squared: batches of one sample give the empirical Fisher matrix itself, larger ones
    less, as gradients of samples cancel. High means keep.

    Raises:
        ValueError: If there is no loss, or it depends on none of the weights.
    """
    return FisherDiagonal(unwrap(context.model), context.groups)


@StreamedSignal
def gate_taylor(context: WidthContext) -> GateTaylor:
    """Score units by the mean over samples of |sum over positions of o dL/do|, o the output at the group's sites.

    The inner sum is the gradient of a gate on the unit (Molchanov et al. 2019, arXiv 1906.10771, "Taylor-FO-BN" on
    gates), one per sample; the absolute values are summed over the sites. High means keep. Molchanov et al. take
    squares; absolute values kept 1 to 2.5 points more of a ResNet-20's accuracy on training images, recalibrated.
    A head counts for as much as its channels together, each with a gate of its own. In the gradient of one gate for
    all they cancel, which ranks heads far too low beside neurons.

    Raises:
        ValueError: If there is no loss, a group has no site, or the loss depends on no unit.
    """
    return GateTaylor(context.groups)


class WeightTaylor(OnePass):
    """Adds up w dL/dw per unit, signed."""

    def __init__(self, model: nn.Module, groups: Sequence[Group]) -> None:
        check_names(groups)
        self.groups = groups
        self.made = made_parameters(model, groups)
        self.parameters = list(self.made.values())
        self.sums = {group.name: torch.zeros(group.size, dtype=torch.float64) for group in groups}
        self.samples = 0

    def end(self, n: int, gates: dict[SiteCall, Tensor], gradients: dict[Parameter, Tensor]) -> None:
        """Add the products of a batch; per unit, so that no gradient is kept.

        Args:
            n: Samples in the batch.
            gates: Not read.
            gradients: Of the mean loss, by parameter.
        """
        products = {name: self._product(p, gradients[p], n) for name, p in self.made.items() if p in gradients}
        for group in self.groups:
            self.sums[group.name] += sum_per_unit(group, products)
        self.samples += n

    def scores(self) -> Scores:
        """Return the absolute values, per sample."""
        return {name: total.abs() / self.samples for name, total in self.sums.items()}

    def _product(self, weight: Parameter, gradient: Tensor, n: int) -> Tensor:
        return n * (weight.detach() * gradient)


class FisherDiagonal(WeightTaylor):
    """Adds up (w dL/dw)^2 per unit."""

    def _product(self, weight: Parameter, gradient: Tensor, n: int) -> Tensor:
        return n * (weight.detach() * gradient).double().square()


class GateTaylor(OnePass):
    """Adds up absolute gradients of the gates."""

    gated = True

    def __init__(self, groups: Sequence[Group]) -> None:
        check_names(groups)
        for group in groups:
            if not group.sites:
                raise ValueError(
                    f"Expected a site where the units of '{group.name}' can be gated, but the group has none. "
                    "Leave it out, or score it by weights ('magnitude', 'r_score')."
                )
        self.sums = {group.name: torch.zeros(group.size, dtype=torch.float64) for group in groups}
        self.samples = 0

    def end(self, n: int, gates: dict[SiteCall, Tensor], gradients: dict[Parameter, Tensor]) -> None:
        """Add a batch; `n` times the gradient of the mean loss is that of the sample's own loss.

        Args:
            n: Samples in the batch.
            gates: `(n, size * channels per unit)`, gradients of the gates by site.
            gradients: Not read.
        """
        for site_call, gradient in gates.items():
            own = self.sums[site_call.group]
            own += (n * gradient).double().abs().sum(0).view(len(own), -1).sum(1).cpu()
        self.samples += n

    def scores(self) -> Scores:
        """Return the means over samples."""
        return {name: total / self.samples for name, total in self.sums.items()}
