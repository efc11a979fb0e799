"""Dense reference of a comparison: the dense network with BatchNorm statistics up to date with the weights.

In the middle of a training the statistics lag behind the weights, so outputs in evaluation mode fall short of the
trained function, and so do plans and fits. The distance of the statistics from fresh estimates does not detect the lag:
statistics from augmented images are further from estimates on plain images than lagging statistics, and better. The
loss does detect the lag. Statistics are estimated on a part of the labelled batches and compared with the present
statistics by the loss of the remaining batches. Where the loss falls by more than the standard error over batches, an
estimate from all batches replaces the statistics. Without labels the statistics stay.

Statistics from a training with augmentation also differ from estimates on a few plain images. Plain estimates move the
output of even the dense network: far for a detector. `DenseNorms` therefore reads only the effect of the surgery from
the samples. Each channel leaves its BatchNorm with the mean and the variance of the dense network on the same samples:
statistics of unchanged channels stay the same, and noise of the estimates cancels out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from prunerecover.importance.measuring.losses import Loss, check_loss, supervised_loss
from prunerecover.model.batches import ModelInputs, on_device, split_labels
from prunerecover.model.copies import share_copy
from prunerecover.model.evaluation import device_of, evaluating, ordinary_arithmetic, uncompiled
from prunerecover.plan.plan import Plan
from prunerecover.recovery.batchnorm import (
    STATISTICS,
    batchnorms,
    estimated,
    recalibrate_batchnorm,
    set_statistics,
    several_samples,
)
from prunerecover.recovery.reconstruction_order import kept_rows, reference_of

FOLDS = 4
Statistics = tuple[Tensor, Tensor]  # mean and variance, `(C,)` each
Estimate = Callable[[nn.Module, Sequence[ModelInputs]], Mapping[str, Statistics]]


def dense_reference(network: nn.Module, batches: Sequence[Any], loss: Loss | None = None) -> nn.Module:
    """Return the network, or a copy with fresh statistics where the present statistics lag; all else is shared.

    Args:
        network: Network without wrappers; not changed.
        batches: Calibration batches, see `fresh_statistics`.
        loss: Loss function, see `fresh_statistics`.
    """
    statistics = fresh_statistics(network, batches, loss)
    return with_own_statistics(network, statistics) if statistics else network


def with_own_statistics(network: nn.Module, statistics: Mapping[str, Tensor]) -> nn.Module:
    """Return a copy with the given statistics, by buffer name; all further tensors are shared."""
    copied = share_copy(network)
    give_statistics(copied, statistics)
    return copied


def give_statistics(copied: nn.Module, statistics: Mapping[str, Tensor]) -> None:
    """Set statistics, by buffer name, in new buffers of a copy with shared buffers."""
    for name, value in statistics.items():
        path, _, buffer = name.rpartition(".")
        copied.get_submodule(path)._buffers[buffer] = value.clone()


@ordinary_arithmetic()
def fresh_statistics(network: nn.Module, batches: Sequence[Any], loss: Loss | None = None) -> dict[str, Tensor]:
    """Return BatchNorm statistics up to date with the weights, by buffer; empty if the present statistics are.

    Args:
        network: Network without wrappers; bit for bit the same afterwards.
        batches: Batches of several samples, at least two; the result is empty for fewer. Labelled, unless `loss` needs
            no labels.
        loss: Loss function `loss(network, batch) -> scalar`; None: the loss of integer labels, as in `plan_width`. The
            result is empty if the loss fails.
    """
    if not batchnorms(network) or len(batches := several_samples(batches)) < 2:
        return {}
    with uncompiled(), evaluating(network):
        try:
            gains = _gains(network, batches, loss or _loss_of_classes)
        except torch.OutOfMemoryError:
            raise
        except Exception:  # no labels, no numbers, another form of batch: callers that need a loss raise the error
            return {}
        if not gains.mean() > gains.std() / len(gains) ** 0.5:
            return {}
        recalibrate_batchnorm(network, batches)
        return {
            f"{path}.{name}": getattr(norm, name).clone()
            for path, norm in batchnorms(network).items()
            for name in STATISTICS
        }


def _gains(network: nn.Module, batches: Sequence[Any], loss: Loss) -> Tensor:
    """Return the fall of the loss of each batch under statistics estimated without the fold of the batch."""

    def value(batch: Any) -> float:
        with evaluating(network):  # the same random numbers with both statistics
            return float(check_loss(loss(network, on_device(batch, device_of(network)))))

    gains, folds = [value(batch) for batch in batches], min(FOLDS, len(batches))
    for fold in range(folds):
        with evaluating(network):
            recalibrate_batchnorm(network, [batch for i, batch in enumerate(batches) if i % folds != fold])
            for i in range(fold, len(batches), folds):
                gains[i] -= value(batches[i])
    return torch.tensor(gains, dtype=torch.float64)


def _loss_of_classes(network: nn.Module, batch: Any) -> Tensor:
    if split_labels(batch)[1].is_floating_point():
        raise TypeError("Expected integer labels, but got floating-point ones. Pass a loss for them.")
    return supervised_loss(network, batch)


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
    """Return the moved statistics of a layer; unchanged for a layer without a dense layer of the same size."""
    alike = norm is not None and norm.seen[0].shape == mean.shape
    return norm.moved(mean, variance) if norm is not None and alike else (mean, variance)


def _norm(layer: Any, seen: Statistics) -> DenseNorm:
    return DenseNorm((layer.running_mean.clone(), layer.running_var.clone()), seen, layer.eps)
