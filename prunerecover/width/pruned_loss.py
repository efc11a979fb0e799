"""The loss of a model without some of its units, on calibration batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from prunerecover.batches import as_inputs, on_device
from prunerecover.copies import clone_of, twin_of
from prunerecover.edits import Edit
from prunerecover.importance.request import Loss
from prunerecover.observing import device_of, observing, uncompiled
from prunerecover.surgery import apply_edits
from prunerecover.width.batchnorm import batchnorms, recalibrate_batchnorm


def pruned_loss(
    model: nn.Module, edits: Sequence[Edit], tensors: Mapping[str, Tensor], batches: Sequence[Any], loss: Loss
) -> float:
    """Return the mean loss over the samples once edits are applied, with BatchNorm recalibrated on the same batches.

    Args:
        model: Unwrapped; it is not changed.
        edits: In order.
        tensors: What they put in place.
        batches: As `loss` takes them.
        loss: `loss(model, batch) -> scalar`, a mean over the batch.
    """
    network = twin_of(model)
    apply_edits(network, edits, tensors)
    if batchnorms(network):
        network = clone_of(network)  # whose statistics are not the model's own
        recalibrate_batchnorm(network, batches)
    device, total, samples = device_of(network), 0.0, 0
    with observing(network), uncompiled():
        for batch in batches:
            n = as_inputs(batch).n_samples
            total += n * float(loss(network, on_device(batch, device)))
            samples += n
    return total / samples
