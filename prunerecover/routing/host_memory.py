"""Weights that wait in host memory while a device has no use for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class _Moved:
    """A tensor on the device, what it was made of, and by what a change is noticed.

    Attributes:
        tensor: Held, so that no other one gets its id.
        host: Its values in host memory.
        version: Counts changes in place.
        pointer: Where its values lie on the device.
    """

    tensor: Tensor
    host: Tensor
    version: int
    pointer: int

    @property
    def is_unchanged(self) -> bool:
        """Whether the values in host memory are still those on the device."""
        return (self.tensor._version, self.tensor.data_ptr()) == (self.version, self.pointer)


class HostMemory:
    """Moves tensors to a device and back.

    The values in host memory stay there, page-locked for a CUDA device, so that they travel at the speed of the bus and
    need not travel back. A tensor that was changed in place on the device, or given other values, is copied back; what
    is written past autograd's count of changes (`weight.data.mul_(2)`) is not noticed, and is lost.

    Args:
        device: Where tensors go.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._moved: dict[int, _Moved] = {}

    def to_device(self, tensor: Tensor) -> None:
        """Put a tensor on the device, unless it is there."""
        if self.holds(tensor):
            return
        host = tensor.data.pin_memory() if self.device.type == "cuda" else tensor.data
        tensor.data = host.to(self.device, non_blocking=True, copy=True)
        self._moved[id(tensor)] = _Moved(tensor, host, tensor._version, tensor.data_ptr())

    def back(self, tensor: Tensor) -> None:
        """Put a tensor back into host memory, if it was moved from there."""
        moved = self._moved.pop(id(tensor), None)
        if moved is not None:
            tensor.data = moved.host if moved.is_unchanged else tensor.data.to(moved.host.device)

    def holds(self, tensor: Tensor) -> bool:
        """Whether a tensor is on the device."""
        return tensor.device.type == self.device.type and self.device.index in (None, tensor.device.index)

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy is made of: its tensors are others, and so are their ids."""
        return {"device": self.device, "moved": list(self._moved.values())}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take over tensors under their own ids."""
        self.device, self._moved = state["device"], {id(moved.tensor): moved for moved in state["moved"]}
