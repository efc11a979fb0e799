"""Changes to a model that can be taken back, and the devices of the removed parts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn


class Change:
    """A change to a model, with the data for an undo."""

    @property
    def parts(self) -> Iterable[Any]:
        """Removed modules and tensors, beside any other values; none by default."""
        return ()

    def undo(self, model: nn.Module, device: torch.device) -> None:
        """Take the change back; returning parts move to the device of the model."""
        raise NotImplementedError


def moved(part: Any, device: torch.device) -> Any:
    """Move a module or tensor to a device and return it; any other value stays.

    Parts stay for the meta device, where a model has parameters and no buffers. A tensor moves in place, with the
    gradient: references to the tensor stay valid.
    """
    held = (*part.parameters(), *part.buffers()) if isinstance(part, nn.Module) else (part,)
    if device.type == "meta" or all(not isinstance(one, Tensor) or one.device == device for one in held):
        return part
    if isinstance(part, nn.Module):
        return part.to(device)
    if not part.is_meta:
        part.data = part.data.to(device)
        if part.grad is not None:
            part.grad.data = part.grad.data.to(device)
    return part
