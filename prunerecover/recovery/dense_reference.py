"""The dense network as what is compared with: its BatchNorm statistics are those of its weights.

In the middle of a training the statistics lag behind the weights, and outputs in evaluation mode are not what the
network has learnt: what is planned for and fitted to them is worse than it need be. How far statistics are off does not
tell: those of a network that was trained on augmented images are further from those of plain images than the ones that
lag, and better than estimates from plain images. The loss tells. Statistics are estimated anew on a part of the
labelled batches, and compared with those that are there by the loss of the others; they are replaced, by an estimate
from all batches, where that is lower by more than its standard error over batches. Without labels they stay.
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
    """Return the network, or a copy with statistics of its own that shares all else, if they have to be replaced.

    Args:
        network: Unwrapped; not changed.
        batches: See `fresh_statistics`.
        loss: See `fresh_statistics`.
    """
    statistics = fresh_statistics(network, batches, loss)
    return with_own_statistics(network, statistics) if statistics else network


def with_own_statistics(network: nn.Module, statistics: Mapping[str, Tensor]) -> nn.Module:
    """Return a copy with the given statistics, by the names of their buffers, that shares all else."""
    copied = share_copy(network)
    give_statistics(copied, statistics)
    return copied


def give_statistics(copied: nn.Module, statistics: Mapping[str, Tensor]) -> None:
    """Give a copy that shares buffers given statistics in buffers of its own, by the names of the buffers."""
    for name, value in statistics.items():
        path, _, buffer = name.rpartition(".")
        copied.get_submodule(path)._buffers[buffer] = value.clone()


@ordinary_arithmetic()
def fresh_statistics(network: nn.Module, batches: Sequence[Any], loss: Loss | None = None) -> dict[str, Tensor]:
    """Return BatchNorm statistics of a network's weights, by buffer; none if those that are there are no worse.

    Args:
        network: Unwrapped; bit for bit as it was afterwards.
        batches: At least two of several samples each, else nothing can be said. Labelled, unless `loss` says otherwise.
        loss: `loss(network, batch) -> scalar`; None: that of integer labels, as of `plan_width`. Where it fails,
            nothing can be said, either.
    """
    if not batchnorms(network) or len(batches := several_samples(batches)) < 2:
        return {}
    with uncompiled(), evaluating(network):
        try:
            gains = _gains(network, batches, loss or _loss_of_classes)
        except torch.OutOfMemoryError:
            raise
        except Exception:  # no labels, no numbers, another form of batch: what needs a loss says what is wrong
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
    """Return by how much the loss of each batch falls with statistics that are estimated without it."""

    def value(batch: Any) -> float:
        with evaluating(network):  # so that what is random is the same with both statistics
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
        raise TypeError("Expected integer labels: others need a loss that says what they are.")
    return supervised_loss(network, batch)
