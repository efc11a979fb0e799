"""Bytes of any value that decides a search, equal in every process, for hashing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import fields, is_dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from prunerecover.model.hashing import stored_parts


def written(value: object) -> Iterator[bytes]:
    """Yield the bytes of a value of any type.

    Tensors are written whole, with dtypes and shapes; mappings, sequences and dataclasses with the names and order of
    their parts; functions by name; all other objects by type alone.

    >>> b"".join(written((1, "a")))
    b"tuple(int:1,str:'a',)"
    """
    if isinstance(value, Tensor):
        yield from _of_tensor(value)
    elif isinstance(value, np.ndarray):
        yield f"{value.dtype}{value.shape}".encode()
        yield value.tobytes()
    elif isinstance(value, bool | int | float | complex | str | bytes | type(None) | np.generic | torch.dtype):
        yield f"{type(value).__name__}:{value!r}".encode()
    elif isinstance(value, Mapping):
        yield from _held(value, (part for pair in value.items() for part in pair))
    elif isinstance(value, Set):
        yield from _held(value, sorted(value, key=repr))
    elif isinstance(value, list | tuple):
        yield from _held(value, value)
    elif isinstance(value, partial):
        yield from _held(value, (value.func, value.args, value.keywords))
    elif isinstance(value, nn.Module):
        yield from _held(value, (repr(value), value.state_dict()))
    elif is_dataclass(value) and not isinstance(value, type):
        yield from _held(value, (part for one in fields(value) for part in (one.name, getattr(value, one.name))))
    else:
        named = value if hasattr(value, "__qualname__") else type(value)
        yield f"{named.__module__}.{named.__qualname__}".encode()


def _held(value: object, parts: Iterable[object]) -> Iterator[bytes]:
    yield f"{type(value).__name__}(".encode()
    for part in parts:
        yield from written(part)
        yield b","
    yield b")"


def _of_tensor(tensor: Tensor) -> Iterator[bytes]:
    """Yield the bytes of a tensor; only the form of nested and meta tensors is written."""
    for part in stored_parts(tensor.detach()):
        yield f"{part.dtype}{'nested' if part.is_nested else tuple(part.shape)}".encode()
        if part.is_nested or part.is_meta:
            continue
        dense = part.to_dense() if part.layout != torch.strided else part
        dense = dense.cpu().resolve_conj().resolve_neg().contiguous().flatten()
        yield dense.view(torch.uint8).numpy().tobytes()
