"""Call a user's loss, and say what is wrong with what it returns."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from prunerecover.batches import on_device
from prunerecover.importance.request import Loss
from prunerecover.observing import device_of


def loss_of(model: nn.Module, batch: Any, loss: Loss) -> Tensor:
    """Return the loss of one batch, moved to the model's device.

    Raises:
        TypeError: If it is no tensor.
        ValueError: If it is not a scalar, or no gradient flows from it.
    """
    value = loss(model, on_device(batch, device_of(model)))
    if not isinstance(value, Tensor):
        raise TypeError(f"Expected loss(model, batch) to return a scalar tensor, but got {type(value).__name__}.")
    if value.numel() != 1 or not value.requires_grad:
        raise ValueError(
            "Expected loss(model, batch) to return a scalar that gradients flow from, but got shape "
            f"{tuple(value.shape)} with requires_grad={value.requires_grad}. Average over the batch, and do not detach."
        )
    return value
