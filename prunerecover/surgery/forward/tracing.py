"""Tracing of a module's own forward with torch.fx, which refuses all that a trace would freeze.

Child modules are leaves: their forwards are not traced. A trace follows a single path through Python code and freezes
the values on the path. Refused are forwards where another call could take another path: decisions on data or types, on
the mode, on the given arguments, on random numbers; forwards that set attributes or make tensors of their own; and
forwards that switch gradients or autocast. Plain attributes (a number of heads) are frozen as well: the trace lists
them, and a rewritten module refuses other values. Not covered: printed output, and numbers read from held objects (a
config).
"""

from __future__ import annotations

import copy
import inspect
import operator
import pickle
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import numpy
import torch
from torch import fx, nn
from torch.fx.node import Argument, map_arg
from torch.fx.proxy import TraceError

from prunerecover.model.replacements import is_plain


def trace_forward(module: nn.Module, where: str) -> tuple[fx.Graph, frozenset[str]]:
    """Trace a module's own forward; the module and the random states stay unchanged.

    Args:
        module: Any module except containers.
        where: Name of the module in messages.

    Returns:
        The calls in the order of execution, and the names of plain attributes whose values are in the graph.

    Raises:
        ValueError: If a trace could not stand for the forward.
    """
    reason = _not_traced(module)
    if reason:
        raise refusal(where, reason)
    read: set[str] = set()
    try:
        with _isinstance_watched(type(module)), _random_states_watched():
            graph = _trace(module, read, module.training, defaults=False)
            other_mode = _trace(module, read, not module.training, defaults=False)
            by_default = _trace(module, read, module.training, defaults=True)
    except Exception as error:
        raise refusal(where, f"tracing it failed ({type(error).__name__}: {str(error)[:200]})") from error
    _check_equal(graph, other_mode, where, "does something else in training than in evaluation")
    _check_equal(graph, by_default, where, "decides by an argument that need not be given")
    settings = {name for name in read - {"training"} if name in vars(module) and is_plain(vars(module)[name])}
    return graph, frozenset(settings)


def refusal(where: str, reason: str) -> ValueError:
    """Return the error for a forward that cannot be rewritten."""
    return ValueError(
        f"Expected the forward of {where} to be one that can be rewritten, but {reason}. Keep the layers whose "
        "activations and sums it computes, or move what it decides into a submodule."
    )


def _not_traced(module: nn.Module) -> str:
    """Return the reason why a module is not traced at all, or an empty string."""
    forward = inspect.unwrap(type(module).forward)
    if isinstance(module, torch.jit.ScriptModule | fx.GraphModule):
        return "it is a script or a graph already"
    if forward is nn.Sequential.forward:
        return "a Sequential has none of its own: replace its parts"
    if "forward" in vars(module):
        return "another one was set on this instance"
    if not isinstance(forward, FunctionType) or forward is getattr(nn.Module, "forward", None):
        return "it has none in Python"
    kinds = {parameter.kind for parameter in inspect.signature(forward).parameters.values()}
    if kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}:
        return "it takes any number of arguments (*args or **kwargs)"
    return ""


class _Proxy(fx.Proxy):
    """A value whose `x += y` is traced as an in-place addition: all references to x see the sum."""


def _in_place(function: Any) -> Any:
    return lambda self, other: self.tracer.create_proxy("call_function", function, (self, other), {})


for _name in ("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow"):
    setattr(_Proxy, f"__{_name}__", _in_place(getattr(operator, _name)))


class _Tracer(fx.Tracer):
    """Tracer with parameters and buffers as nodes, and a node for each call of a child."""

    proxy_buffer_attributes = True

    def __init__(self, defaults: bool) -> None:
        super().__init__()
        self.defaults, self.state = defaults, _switches()

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True

    def create_node(self, kind: str, *args: Any, **kwargs: Any) -> fx.Node:
        if _switches() != self.state:
            raise TraceError("it switches gradients or autocast inside")
        return super().create_node(kind, *args, **kwargs)

    def create_proxy(self, kind: str, target: Any, args: Any, kwargs: Any, *more: Any, **named: Any) -> Any:
        proxy = super().create_proxy(kind, target, args, kwargs, *more, **named)
        return args[0] if kind == "placeholder" and self.defaults and args else proxy


def _switches() -> tuple[bool, ...]:
    autocast = (torch.is_autocast_enabled(device) for device in ("cpu", "cuda"))
    return (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), *autocast)


def _trace(module: nn.Module, read: set[str], training: bool, defaults: bool) -> fx.Graph:
    """Trace a copy with shared tensors and children, and record the attributes read."""
    kind: Any = type(module)

    class Reading(kind):  # type: ignore[misc]
        def __getattribute__(self, name: str) -> Any:
            read.add(name)
            return super().__getattribute__(name)

    root: nn.Module = object.__new__(Reading)
    vars(root).update(
        {name: copy.copy(v) if isinstance(v, dict | list | set) else v for name, v in vars(module).items()}
    )
    vars(root)["training"] = training
    before = _identities(vars(root))
    graph = _Tracer(defaults).trace(root)
    after = _identities(vars(root))
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    if any(name.startswith("_tensor_constant") for name in changed):
        raise TraceError("it makes a tensor that does not depend on its input")
    if changed:
        raise TraceError(f"it sets its attribute {', '.join(changed)}")
    return graph


def _identities(held: Mapping[str, Any]) -> dict[str, Any]:
    def identity(value: Any) -> Any:
        if isinstance(value, dict):
            return [(name, id(entry)) for name, entry in value.items()]
        return [id(entry) for entry in value] if isinstance(value, list | set) else id(value)

    return {name: identity(value) for name, value in held.items()}


@contextmanager
def _isinstance_watched(kind: type) -> Iterator[None]:
    """Make `isinstance` fail for traced values in the files of the class and the base classes."""

    def watched(value: Any, kinds: Any) -> bool:
        if isinstance(value, fx.Proxy):
            raise TraceError("it asks for the type of its data (isinstance)")
        return isinstance(value, kinds)

    functions = (f for cls in kind.__mro__ for f in vars(cls).values() if isinstance(f, FunctionType))
    files = {id(f.__globals__): f.__globals__ for f in functions if not str(f.__module__).startswith("torch.")}
    own = [file for file in files.values() if "isinstance" not in file and file.get("__name__") != __name__]
    for file in own:
        file["isinstance"] = watched
    try:
        yield
    finally:
        for file in own:
            del file["isinstance"]


@contextmanager
def _random_states_watched() -> Iterator[None]:
    before = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
    try:
        yield
        after = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
        kept, found = (pickle.dumps(states[:2]) for states in (before, after))
        if kept != found or not torch.equal(before[2], after[2]):
            raise TraceError("it draws random numbers that do not depend on its input")
    finally:
        random.setstate(before[0])
        numpy.random.set_state(before[1])
        torch.set_rng_state(before[2])


def _check_equal(graph: fx.Graph, other: fx.Graph, where: str, difference: str) -> None:
    mine, theirs = _lines(graph), _lines(other)
    if mine != theirs:
        names = [name for name, line in mine.items() if theirs.get(name) != line] or list(theirs.keys() - mine.keys())
        raise refusal(where, f"it {difference} (see '{names[0]}')")


def _lines(graph: fx.Graph) -> dict[str, str]:
    """Return the operation of each node; omitted arguments count as defaults."""

    def given(node: fx.Node) -> Argument:
        return node.args[0] if node.op == "placeholder" and node.args else node

    nodes = [node for node in graph.nodes if node.op != "placeholder"]
    return {n.name: f"{n.op} {n.target} {map_arg(n.args, given)} {map_arg(n.kwargs, given)}" for n in nodes}
