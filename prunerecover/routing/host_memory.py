"""Host memory for weights not needed on a device at the moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class _Moved:
    """A tensor on the device with host values, and marks to detect changes.

    Attributes:
        tensor: Tensor on the device, held so the id stays taken.
        host: Values in host memory.
        version: Autograd's count of changes in place.
        pointer: Address of the values on the device.
    """

    tensor: Tensor
    host: Tensor
    version: int
    pointer: int

    @property
    def is_unchanged(self) -> bool:
        """Whether the values in host memory equal the values on the device."""
        return (self.tensor._version, self.tensor.data_ptr()) == (self.version, self.pointer)


class HostMemory:
    """Transfer of tensors to a device and back.

    Host values stay in host memory, page-locked for a CUDA device: transfers run at the speed of the bus, and unchanged
    tensors need no transfer back. A tensor changed in place on the device, or given new values, is copied back; a
    change past autograd's count (`weight.data.mul_(2)`) is not detected, and lost.

    Args:
        device: Target device.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._moved: dict[int, _Moved] = {}

    def to_device(self, tensor: Tensor) -> None:
        """Move a tensor to the device, unless already there."""
        if self.holds(tensor):
            return
        host = tensor.data.pin_memory() if self.device.type == "cuda" else tensor.data
        tensor.data = host.to(self.device, non_blocking=True, copy=True)
        self._moved[id(tensor)] = _Moved(tensor, host, tensor._version, tensor.data_ptr())

    def back(self, tensor: Tensor) -> None:
        """Move a tensor back to host memory, if it came from there."""
        moved = self._moved.pop(id(tensor), None)
        if moved is not None:
            tensor.data = moved.host if moved.is_unchanged else tensor.data.to(moved.host.device)

    def holds(self, tensor: Tensor) -> bool:
        """Whether a tensor is on the device."""
        return tensor.device.type == self.device.type and self.device.index in (None, tensor.device.index)

    def __getstate__(self) -> dict[str, Any]:
        """Return state without ids: a copy has new tensors with new ids."""
        return {"device": self.device, "moved": list(self._moved.values())}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Register tensors under their present ids."""
        self.device, self._moved = state["device"], {id(moved.tensor): moved for moved in state["moved"]}
