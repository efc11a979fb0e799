"""Classes of modules with a rewritten forward: the original class with new code, pickled as class and code."""

from __future__ import annotations

import linecache
import math
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any, cast

import torch
from torch import fx, nn

# Names that code from torch.fx uses without an import.
GLOBALS = {"torch": torch, "inf": math.inf, "nan": math.nan, "NoneType": type(None), "device": torch.device}


@dataclass(frozen=True)
class Forward:
    """Code of a forward, as data for pickling and comparison.

    Attributes:
        source: Source of a function `forward(self, ...)`.
        functions: Called functions outside `torch`, by name.
        settings: Attributes of the module whose values are in the code.
    """

    source: str
    functions: tuple[tuple[str, Any], ...]
    settings: frozenset[str]


class RewrittenForward:
    """Mixin of the classes of rewritten modules, in front of the original class.

    Attributes:
        original: Class before the rewriting.
        code: Code of the forward.
        rerouted: Removed calls in order, each named for the forward just before.
    """

    original: type[nn.Module]
    code: Forward
    rerouted: tuple[str, ...]

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.code.settings and (before := vars(self)[name]) != value:
            raise ValueError(
                f"Expected '{name}' of this rewritten {type(self).__name__} to stay {before}, which its forward was "
                f"traced with, but got {value}. Set or narrow it first, and take calls out of the forward afterwards."
            )
        super().__setattr__(name, value)

    def __reduce_ex__(self, protocol: Any) -> Any:
        plain: Any = super().__reduce_ex__(protocol)
        return (_empty, (self.original, self.code), *plain[2:])

    def extra_repr(self) -> str:
        """Text of `print(model)`, with the removed calls."""
        shown: str = super().extra_repr()  # type: ignore[misc]
        return ", ".join([shown] * bool(shown) + [f"without {' '.join(self.rerouted)}"])


def code_of(graph: fx.Graph, settings: frozenset[str]) -> Forward:
    """Return a graph as code.

    Args:
        graph: Graph of a forward.
        settings: Attributes of the module whose values are in the graph.
    """
    for node in graph.nodes:
        node.type = None  # annotations would have to be pickled
    python = graph.python_code("self")
    found = {name: value for name, value in python.globals.items() if name not in GLOBALS}
    functions = {name: value for name, value in found.items() if not isinstance(value, ModuleType)}
    return Forward(python.src, tuple(functions.items()), settings)


def forward_of(module: nn.Module) -> tuple[type[nn.Module], Forward | None, tuple[str, ...]]:
    """Return the original class of a module, the code of a rewritten forward or None, and the removed calls."""
    if isinstance(module, RewrittenForward):
        return module.original, module.code, module.rerouted
    return type(module), None, ()


def set_forward(module: nn.Module, original: type[nn.Module], code: Forward | None, rerouted: tuple[str, ...]) -> None:
    """Set a module's forward, in the form of `forward_of`."""
    vars(module).pop("rerouted", None)
    if code is None:
        module.__class__ = original
        return
    vars(module)["rerouted"] = rerouted
    module.__class__ = class_of(cast(Any, original), code)


@cache
def class_of(original: Any, code: Forward) -> Any:
    """Return the subclass with the code as forward, under the name of the original."""
    scope: dict[str, Any] = {**GLOBALS, **dict(code.functions)}
    file = f"<rewritten forward of {original.__qualname__} {abs(hash(code.source)):x}>"
    exec(compile(code.source, file, "exec"), scope)
    linecache.cache[file] = (len(code.source), None, code.source.splitlines(keepends=True), file)  # for tracebacks
    names = {name: getattr(original, name) for name in ("__module__", "__qualname__", "__doc__")}
    body = {**names, "forward": scope["forward"], "original": original, "code": code}
    return type(original)(original.__name__, (RewrittenForward, original), body)


def _empty(original: type[nn.Module], code: Forward) -> nn.Module:
    """Return a module without attributes, for copying and unpickling."""
    empty: nn.Module = object.__new__(class_of(cast(Any, original), code))
    return empty
