"""Read a file of `torch.save` without executing anything in it, also where it holds more than plain data.

`torch.load(weights_only=True)` refuses a file with one foreign object, such as a network or an optimizer's class among
the hyperparameters. Here foreign objects become `Foreign`, which keeps the name of their class and nothing else; what
rebuilds tensors and containers is all that is ever called.
"""

from __future__ import annotations

import collections
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

CONTAINERS = {"OrderedDict", "defaultdict", "Counter", "deque"}
BUILTINS = {"set": set, "frozenset": frozenset, "bytearray": bytearray, "complex": complex, "slice": slice}
OF_TORCH = (torch.dtype, torch.layout, torch.memory_format)


class Foreign:
    """Stands in for an object of a class that is not plain data; `path` is the class's."""

    path = ""

    def __new__(cls, *_: Any, **__: Any) -> Foreign:
        """Ignore what the object would be made of."""
        return object.__new__(cls)

    def __init__(self, *_: Any, **__: Any) -> None:
        """Ignore what the object would be made of."""

    def __call__(self, *_: Any, **__: Any) -> Foreign:
        """Return what a foreign function would: something foreign."""
        return self

    def __setstate__(self, _: Any) -> None:
        """Ignore the object's state."""

    def __setitem__(self, _: Any, __: Any) -> None:
        """Ignore an entry."""

    def append(self, _: Any) -> None:
        """Ignore an entry."""

    def extend(self, _: Any) -> None:
        """Ignore entries."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Return what rebuilds plain data, and a stand-in for everything else."""
        if module == "collections" and name in CONTAINERS:
            return getattr(collections, name)
        if module == "builtins" and name in BUILTINS:
            return BUILTINS[name]
        if module == "torch._utils" and name.startswith("_rebuild_"):
            return getattr(torch._utils, name)
        if module == "torch.nn.parameter" and name in ("Parameter", "Buffer"):
            return getattr(torch.nn.parameter, name)
        if module == "torch":
            found = getattr(torch, name, None)
            if name in ("Size", "device", "Tensor") or isinstance(found, OF_TORCH):
                return found
        return type(name, (Foreign,), {"path": f"{module}.{name}"})


def read_without_executing(path: Path) -> Any:
    """Return what `torch.save` wrote, foreign objects replaced by `Foreign`; nothing in the file is executed.

    Raises:
        Exception: Of any kind, if it is no such file.
    """
    reader = SimpleNamespace(Unpickler=_Unpickler, load=lambda file, **_: _Unpickler(file).load(), __name__="pickle")
    return torch.load(path, map_location="cpu", weights_only=False, pickle_module=reader)


def foreign_class(value: Any) -> str | None:
    """Return the class path of the first foreign object in a value, at any depth; None if it is plain data."""
    for leaf in tree_leaves(value):
        cls = leaf if isinstance(leaf, type) else type(leaf)
        if issubclass(cls, Foreign):
            return cls.path
    return None
