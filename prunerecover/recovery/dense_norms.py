"""BatchNorm statistics of a pruned network, as far from those of the samples as in the dense network.

Statistics from a training with augmentation are not those of a few plain images. Plain estimates in a pruned network
would replace the former by the latter, which moves the output of even the dense network: far for a detector. Here the
samples only tell what the surgery changed. Each channel leaves its BatchNorm with the mean and the variance that it has
in the dense network on the same samples: statistics stay as they are where nothing changed, and noise of the estimates
cancels out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from prunerecover.model.batches import ModelInputs
from prunerecover.plan.plan import Plan
from prunerecover.recovery.batchnorm import STATISTICS, estimated, set_statistics
from prunerecover.recovery.reconstruction_order import kept_rows, reference_of

Statistics = tuple[Tensor, Tensor]  # mean and variance, `(C,)` each
Estimate = Callable[[nn.Module, Sequence[ModelInputs]], Mapping[str, Statistics]]


@dataclass(frozen=True)
class DenseNorm:
    """A BatchNorm layer of the dense network.

    Attributes:
        kept: Running statistics.
        seen: Statistics on the calibration samples.
        eps: Constant that is added to variances.
    """

    kept: Statistics
    seen: Statistics
    eps: float

    def of(self, rows: Tensor | None) -> DenseNorm:
        """Return the layer with some of the channels; None: all."""
        if rows is None:
            return self
        kept, seen = (tuple(each[rows.to(each.device)] for each in pair) for pair in (self.kept, self.seen))
        return DenseNorm((kept[0], kept[1]), (seen[0], seen[1]), self.eps)

    def moved(self, mean: Tensor, variance: Tensor) -> Statistics:
        """Return the statistics for a channel of other mean and variance on the samples.

        >>> norm = DenseNorm((torch.ones(1), torch.ones(1)), (torch.zeros(1), torch.ones(1)), eps=0.0)
        >>> norm.moved(torch.zeros(1), 4 * torch.ones(1))
        (tensor([2.]), tensor([4.]))

        Args:
            mean: Mean in the pruned network on the samples.
            variance: Variance in the pruned network on the samples.
        """
        (kept_mean, kept_variance), (seen_mean, seen_variance) = (
            tuple(each.to(mean) for each in pair) for pair in (self.kept, self.seen)
        )
        tiny = torch.finfo(torch.float32).tiny
        grown = (variance + self.eps + tiny) / (seen_variance + self.eps + tiny)
        moved = (kept_variance + self.eps) * grown - self.eps
        return mean + (kept_mean - seen_mean) * grown.sqrt(), moved.clamp_min(0)


class DenseNorms:
    """BatchNorm layers of a dense network, with statistics on samples.

    Args:
        dense: Dense network; its statistics are read now.
        samples: Calibration samples.
        estimate: Function `(network, samples) -> statistics` by path, as for the pruned network.
    """

    def __init__(self, dense: nn.Module, samples: Sequence[ModelInputs], estimate: Estimate) -> None:
        self.dense = dense
        self._norms = {path: _norm(dense.get_submodule(path), seen) for path, seen in estimate(dense, samples).items()}

    def after(self, plan: Plan) -> dict[str, DenseNorm]:
        """Return the layers with their remaining channels, by path; empty where blocks behind removed ones move up."""
        if reference_of(self.dense, plan) is not self.dense:
            return {}
        rows = kept_rows(self.dense, plan)
        return {path: norm.of(rows.get(path)) for path, norm in self._norms.items()}


def recalibrate_as_dense(network: nn.Module, batches: Sequence[ModelInputs], dense: Mapping[str, DenseNorm]) -> None:
    """Estimate the statistics of every BatchNorm anew, in place, as far from the batches as in the dense network.

    Args:
        network: Pruned network without wrappers.
        batches: Calibration batches, as in `recalibrate_batchnorm`.
        dense: Layers of the dense network by path, with averages over the same batches; see `by_batch`.
    """
    found = estimated(network, batches)
    for path, own in found.items():
        own |= dict(zip(STATISTICS, moved_at(dense.get(path), own[STATISTICS[0]], own[STATISTICS[1]]), strict=False))
    set_statistics(network, found)


def by_batch(network: nn.Module, batches: Sequence[ModelInputs]) -> dict[str, Statistics]:
    """Return the averages over batches of the statistics of every BatchNorm, by path."""
    mean, variance, _ = STATISTICS
    return {path: (own[mean], own[variance]) for path, own in estimated(network, batches).items()}


def moved_at(norm: DenseNorm | None, mean: Tensor, variance: Tensor) -> Statistics:
    """Return the statistics of one layer, moved; as they are for a layer without a dense one of the same size."""
    alike = norm is not None and norm.seen[0].shape == mean.shape
    return norm.moved(mean, variance) if norm is not None and alike else (mean, variance)


def _norm(layer: Any, seen: Statistics) -> DenseNorm:
    return DenseNorm((layer.running_mean.clone(), layer.running_var.clone()), seen, layer.eps)
