"""Dense reference of a comparison: the dense network with BatchNorm statistics up to date with the weights.

In the middle of a training the statistics lag behind the weights, so outputs in evaluation mode fall short of the
trained function, and plans and fits towards them do, too. The distance of the statistics from fresh estimates does not
detect the lag: statistics from augmented images are further from estimates on plain images than lagging statistics, and
better. The loss does. Statistics are estimated on a part of the labelled batches and compared with the present
statistics by the loss of the remaining batches. Where the loss falls by more than the standard error over batches, an
estimate from all batches replaces the statistics. Without labels the statistics stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from prunerecover.importance.measuring.losses import Loss, check_loss, supervised_loss
from prunerecover.model.batches import on_device, split_labels
from prunerecover.model.copies import share_copy
from prunerecover.model.evaluation import device_of, evaluating, ordinary_arithmetic, uncompiled
from prunerecover.recovery.batchnorm import STATISTICS, batchnorms, recalibrate_batchnorm, several_samples

FOLDS = 4


def dense_reference(network: nn.Module, batches: Sequence[Any], loss: Loss | None = None) -> nn.Module:
    """Return the network, or a copy with fresh statistics where the present statistics lag; other tensors are shared.

    Args:
        network: Network without wrappers; not changed.
        batches: Calibration batches, see `fresh_statistics`.
        loss: Loss function, see `fresh_statistics`.
    """
    statistics = fresh_statistics(network, batches, loss)
    return with_own_statistics(network, statistics) if statistics else network


def with_own_statistics(network: nn.Module, statistics: Mapping[str, Tensor]) -> nn.Module:
    """Return a copy with the given statistics, by buffer name; other tensors are shared."""
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
