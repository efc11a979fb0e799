"""Tensors whose values are computed when an operation uses them, and given up afterwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

LARGE = 1 << 22  # bytes of a tensor; smaller tensors are computed at once


class WhenUsed(Tensor):
    """Tensor without memory: each operation computes the values anew.

    >>> weight = torch.arange(6.0).reshape(2, 3)
    >>> cut = WhenUsed(lambda: weight[:, 1:], (2, 2), weight)
    >>> cut.shape, torch.nn.functional.linear(torch.ones(2), cut)
    (torch.Size([2, 2]), tensor([3., 9.]))

    Args:
        compute: Function for the values, always the same, as a contiguous tensor.
        shape: Shape of the values.
        like: Tensor with the dtype and device of the values.
    """

    compute: Callable[[], Tensor]

    @staticmethod
    def __new__(cls, compute: Callable[[], Tensor], shape: Sequence[int], like: Tensor) -> WhenUsed:
        """Make the tensor."""
        made: WhenUsed = Tensor._make_wrapper_subclass(cls, shape, dtype=like.dtype, device=like.device)
        made.compute = compute
        return made

    def __init__(self, compute: Callable[[], Tensor], shape: Sequence[int], like: Tensor) -> None:
        super().__init__()

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Run an operation on computed values; a detached tensor stays without memory.

        Raises:
            RuntimeError: If the operation writes to the tensor.
        """
        if func is torch.ops.aten.detach.default:
            return cls(args[0].compute, args[0].shape, args[0])
        if func._schema.is_mutable and isinstance(args[0], WhenUsed):
            raise RuntimeError("Expected a tensor to write to, but the values of this one are computed anew each time.")
        args, kwargs = tree_map_only(WhenUsed, computed, (args, kwargs or {}))
        return func(*args, **kwargs)


def when_used(compute: Callable[[], Tensor], shape: Sequence[int], like: Tensor) -> Tensor:
    """Return a tensor whose values are computed when used, if large; a small tensor is computed at once.

    Args:
        compute: Function for the values, always the same, as a contiguous tensor.
        shape: Shape of the values.
        like: Tensor with the dtype and device of the values.
    """
    return WhenUsed(compute, shape, like) if prod(shape) * like.itemsize >= LARGE else compute()


def computed(tensor: Tensor) -> Tensor:
    """Return a tensor with values in memory."""
    return tensor.compute() if isinstance(tensor, WhenUsed) else tensor
