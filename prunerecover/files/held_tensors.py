"""Tensors held for later use: in memory while there is room, and beyond in temporary files mapped into memory.

The operating system writes pages of mapped tensors to the disk when memory is needed, and reads them again when values
are used. A file goes with its tensor. `TMPDIR` names the folder of temporary files.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

MOST_HELD = 1 << 30  # bytes in memory, of all held tensors
_held = [0]  # bytes in memory


def held(tensor: Tensor) -> Tensor:
    """Return a tensor to hold: the tensor itself, or equal values mapped from a temporary file.

    Tensors on other devices than the CPU, and tensors of subclasses, stay where they are.

    >>> bool(held(torch.ones(3)).all())
    True

    Args:
        tensor: Tensor with a storage of its own.

    Raises:
        OSError: If the folder of temporary files has no room.
    """
    if type(tensor) is not Tensor or tensor.device.type != "cpu" or not tensor.nbytes:
        return tensor
    if _held[0] + tensor.nbytes <= MOST_HELD:
        _held[0] += tensor.nbytes
        weakref.finalize(tensor, _release, tensor.nbytes)
        return tensor
    with tempfile.TemporaryFile(prefix="prunerecover-") as file:
        _make_room(file.fileno(), tensor.nbytes)
        mapped = torch.from_numpy(np.memmap(file, np.uint8, "w+", shape=(tensor.nbytes,)))
    return mapped.view(tensor.dtype).view(tensor.shape).copy_(tensor)


def _make_room(file: int, size: int) -> None:
    """Reserve bytes of an open file: a mapped page without room on the disk would end the process."""
    try:
        getattr(os, "posix_fallocate", lambda *_: None)(file, 0, size)  # missing on some systems
    except OSError as error:
        raise OSError(
            f"Expected room for {size / 1e6:.0f} MB in {tempfile.gettempdir()}, where planning holds what does not fit "
            f"into memory, but got: {error}. Set TMPDIR to a folder on a disk with room."
        ) from error


def all_held(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors by name as `held` does."""
    return {name: held(tensor) for name, tensor in tensors.items()}


def _release(size: int) -> None:
    _held[0] -= size
