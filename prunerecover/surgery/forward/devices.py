"""Devices of parts removed and put back by surgery."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def moved(module: nn.Module, device: torch.device) -> nn.Module:
    """Move a module to a device, except the meta device, where a model has parameters and no buffers."""
    stays = device.type == "meta" or all(held.device == device for held in (*module.parameters(), *module.buffers()))
    return module if stays else module.to(device)


def move_tensor(tensor: Tensor, device: torch.device) -> None:
    """Move a tensor in place, with the gradient: references to the tensor stay valid."""
    if tensor.device == device or tensor.is_meta or device.type == "meta":
        return
    tensor.data = tensor.data.to(device)
    if tensor.grad is not None:
        tensor.grad.data = tensor.grad.data.to(device)
