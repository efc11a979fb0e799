"""Hashes that tell whether a plan and a model belong together.

Names and shapes are compared, never dtype or device: a plan made in float32 or on the meta device applies to the same
model in bfloat16 on a GPU. Values are compared after rounding to bfloat16, on at most 1,024 evenly spaced elements per
tensor.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn

SAMPLES_PER_TENSOR = 1024


def tensors_hash(model: nn.Module) -> str:
    """Hash the class name and the names and shapes of all parameters and persistent buffers.

    >>> tensors_hash(nn.Linear(2, 3)) == tensors_hash(nn.Linear(2, 3).double())
    True
    """
    digest = hashlib.sha256(type(model).__name__.encode())
    for name, tensor in _named_tensors(model):
        digest.update(f"{name}{tuple(tensor.shape)}".encode())
    return digest.hexdigest()


def weights_hash(model: nn.Module, through: torch.dtype | None = None) -> str | None:
    """Hash the values of all parameters; None if any is on the meta device.

    Buffers do not count: until the next forward pass, each rank of a run has its own BatchNorm statistics.

    Args:
        model: Network of any precision.
        through: Dtype for a first rounding. `torch.float16` gives the hash of the model in float16, where values are
            rounded differently than to bfloat16.
    """
    digest = hashlib.sha256()
    for name, tensor in _named_tensors(model):
        if not isinstance(tensor, nn.Parameter):
            continue
        if tensor.is_meta:
            return None
        digest.update(name.encode())
        for part in stored_parts(tensor.detach()):
            flat = part.flatten()
            step = max(1, flat.numel() // SAMPLES_PER_TENSOR)
            sample = flat[::step][:SAMPLES_PER_TENSOR].to("cpu")
            sample = sample.to(through or sample.dtype).to(torch.bfloat16)
            digest.update(sample.view(torch.int16).numpy().tobytes())
    return digest.hexdigest()


def stored_parts(tensor: Tensor) -> Iterator[Tensor]:
    """Yield the plain tensors with a quantised tensor's values (integers, scales), or a plain tensor itself."""
    if not is_quantised(tensor):
        yield tensor
        return
    names, _ = cast(Any, tensor).__tensor_flatten__()
    for name in names:
        yield from stored_parts(getattr(tensor, name))


def is_quantised(tensor: Tensor) -> bool:
    """Whether a tensor's class is torchao's, without an import."""
    return type(tensor).__module__.partition(".")[0] == "torchao"


def _named_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    state = model.state_dict(keep_vars=True)
    return iter(sorted(((k, v) for k, v in state.items() if isinstance(v, Tensor)), key=lambda item: item[0]))
