"""Reading of `torch.save` files without execution, even files with more than plain data.

`torch.load(weights_only=True)` refuses a file with a single foreign object, such as a network or an optimizer's class
among the hyperparameters. Here foreign objects become `Foreign` with the name of their class alone; only constructors
of tensors and containers are ever called.
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
    """Stand-in for an object outside plain data; `path` is the path of the class."""

    path = ""

    def __new__(cls, *_: Any, **__: Any) -> Foreign:
        """Ignore the arguments."""
        return object.__new__(cls)

    def __init__(self, *_: Any, **__: Any) -> None:
        """Ignore the arguments."""

    def __call__(self, *_: Any, **__: Any) -> Foreign:
        """Return a foreign object, in place of a foreign function's result."""
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
        """Return constructors of plain data, and a substitute for any other class."""
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
    """Return the content of a `torch.save` file, with `Foreign` in place of foreign objects; nothing is executed.

    Raises:
        Exception: Any kind of error, if the path is no file of `torch.save`.
    """
    reader = SimpleNamespace(Unpickler=_Unpickler, load=lambda file, **_: _Unpickler(file).load(), __name__="pickle")
    return torch.load(path, map_location="cpu", weights_only=False, pickle_module=reader)


def foreign_class(value: Any) -> str | None:
    """Return the class path of the first foreign object in a value, at any depth; None for plain data."""
    for leaf in tree_leaves(value):
        cls = leaf if isinstance(leaf, type) else type(leaf)
        if issubclass(cls, Foreign):
            return cls.path
    return None
