"""Subnormal weights: numbers too small for full precision, on which many processors compute far slower.

Weights decay towards zero in training, and products of small factors in a merge or a fit are smaller still. Such
weights become zero in a merge, a reconstruction and an exported file. Not covered: float16, whose numbers below 6e-5
are part of the precision, weights of quantisers, and buffers.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from prunerecover.model.copies import deep_copy
from prunerecover.model.hashing import is_quantised

WIDE = (torch.float64, torch.float32, torch.bfloat16)  # dtypes without use of subnormal numbers


@torch.no_grad()
def flush_subnormals(network: nn.Module) -> int:
    """Set the subnormal weights of a network to zero, in place; return the number of these weights.

    >>> linear = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.constant_(linear.weight, 1e-40)
    >>> flush_subnormals(linear), linear.weight.tolist()
    (2, [[0.0, 0.0]])
    """
    found = 0
    for weight in network.parameters():
        subnormal = _subnormal(weight)
        if subnormal is not None:
            _own_part(weight.data).masked_fill_(subnormal, 0)
            found += int(subnormal.sum())
    return found


def without_subnormals(network: nn.Module) -> nn.Module:
    """Return a network without subnormal weights: the network itself, or a copy if there are such weights."""
    if all(_subnormal(weight) is None for weight in network.parameters()):
        return network
    copied = deep_copy(network)
    flush_subnormals(copied)
    return copied


def _subnormal(weight: Tensor) -> Tensor | None:
    """Return a mask of the subnormal elements of a weight's own part; None without such elements."""
    if weight.is_meta or weight.is_nested or is_quantised(weight) or weight.dtype not in WIDE:
        return None
    sizes = _own_part(weight.detach()).abs()
    found = (sizes < torch.finfo(weight.dtype).tiny) & (sizes > 0)
    return found if bool(found.any()) else None


def _own_part(weight: Tensor) -> Tensor:
    """Return the rank's part of a sharded weight, or the weight itself."""
    part: Tensor = weight.to_local() if hasattr(weight, "to_local") else weight
    return part
