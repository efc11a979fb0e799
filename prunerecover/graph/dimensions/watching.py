"""Watching of a forward pass: every PyTorch operation and every module call, as they happen.

Operations are seen below autograd, whatever the model's code looks like, on any device, even the meta device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from prunerecover.model.batches import ModelInputs, call
from prunerecover.model.evaluation import evaluating, train_but_for_statistics, uncompiled
from prunerecover.model.hooks import removed_after


@dataclass(frozen=True)
class Operation:
    """An operation of PyTorch, just executed.

    Attributes:
        func: ATen operator.
        args: Positional arguments.
        kwargs: Keyword arguments.
        out: Output of the operator.
    """

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: Any

    @cached_property
    def name(self) -> str:
        """Name without the underscore of operations in place."""
        name: str = self.func.overloadpacket.__name__
        return name.rstrip("_")

    @property
    def in_place(self) -> bool:
        """Whether the operation writes into its first argument."""
        return bool(self.name != self.func.overloadpacket.__name__)

    @cached_property
    def tensors(self) -> list[Tensor]:
        """The tensors among the arguments."""
        return [leaf for leaf in tree_leaves((self.args, self.kwargs)) if isinstance(leaf, Tensor)]

    @cached_property
    def outputs(self) -> list[Tensor]:
        """The tensors in the output."""
        return [leaf for leaf in tree_leaves(self.out) if isinstance(leaf, Tensor)]

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """Return an argument passed by position or by name.

        Args:
            position: Place among positional arguments.
            name: Keyword of the argument.
            default: Value of an omitted argument.
        """
        return self.args[position] if len(self.args) > position else self.kwargs.get(name, default)


class Observer:
    """Observer of a forward pass; events without a method of the observer's own are ignored."""

    @property
    def running(self) -> bool:
        """Whether a call has begun and not ended."""
        return False

    def enter(self, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note a call of the module at `path`."""

    def leave(self, path: str, module: nn.Module, output: Any) -> None:
        """Note the return of the module at `path`."""

    def operation(self, operation: Operation) -> None:
        """Note an executed operation."""

    def read(self, path: str, *, tensor: bool) -> None:
        """Note that code reads a part of the module at `path`: a parameter or buffer, or a submodule."""

    def hooked(self, path: str, tensors: Sequence[Tensor]) -> None:
        """Note the tensors given to a hook at `path` that the network's own code registered."""


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, observers: tuple[Observer, ...]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.observers = observers

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        operation = Operation(func, args, kwargs or {}, func(*args, **(kwargs or {})))
        for observer in self.observers:
            observer.operation(operation)
        return operation.out


def watch(model: nn.Module, inputs: ModelInputs, *observers: Observer, training: bool = False) -> Any:
    """Run a model once, and notify observers of every event.

    A module without submodules that returns its input unchanged (dropout, an identity, a replacement) is seen to return
    an alias: readers of the output can be told from readers of the input.

    Args:
        model: Network; bit-identical afterwards.
        inputs: Batch.
        observers: Observers, notified of each event in this order.
        training: Whether to run in training mode instead of evaluation mode.

    Returns:
        Output of the model.
    """
    with evaluating(model), uncompiled(), watching_calls(model, observers), _Watch(observers):
        if training:
            train_but_for_statistics(model)
        return call(model, inputs)


@contextmanager
def watching_code(model: nn.Module, observer: Observer) -> Iterator[None]:
    """Notify an observer, inside a `with` block, of module parts read by code and of hooks registered by code.

    The hooks get aliases of tensors: tensors passed on by a hook can be told from tensors read by the network itself.

    Args:
        model: Network watched inside the block.
        observer: Observer, notified of each event.
    """
    paths = {module: path for path, module in model.named_modules()}
    read, after, before = nn.Module.__getattr__, nn.Module.register_forward_hook, nn.Module.register_forward_pre_hook

    def noted(module: nn.Module, name: str) -> Any:
        value = read(module, name)
        if module in paths:
            observer.read(paths[module], tensor=isinstance(value, Tensor))
        return value

    def registering(register: Callable[..., Any]) -> Callable[..., Any]:
        def registered(module: nn.Module, hook: Callable[..., Any], **options: Any) -> Any:
            if module not in paths or not observer.running:
                return register(module, hook, **options)

            def given(caller: nn.Module, *seen: Any) -> Any:
                aliases = tree_map(lambda leaf: torch.ops.aten.alias(leaf) if isinstance(leaf, Tensor) else leaf, seen)
                observer.hooked(paths[module], [leaf for leaf in tree_leaves(aliases) if isinstance(leaf, Tensor)])
                return hook(caller, *aliases)

            return register(module, given, **options)

        return registered

    hooks: dict[str, Any] = {
        "register_forward_hook": registering(after),
        "register_forward_pre_hook": registering(before),
    }
    with mock.patch.multiple(nn.Module, __getattr__=noted, **hooks):
        yield


@contextmanager
def watching_calls(model: nn.Module, observers: Sequence[Observer]) -> Iterator[None]:
    """Notify observers, inside a `with` block, of the calls of a model's modules.

    Args:
        model: Watched network.
        observers: Observers, notified of each event in this order.
    """
    handles = []
    running: list[str] = []
    for module, paths in _paths(model).items():

        def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], paths: tuple[str, ...] = paths) -> None:
            path = _place(paths, running[-1] if running else "")
            running.append(path)
            for observer in observers:
                observer.enter(path, args, kwargs)

        def after(module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
            told, path = output if module._modules else _distinct(output, (args, kwargs)), running.pop()
            for observer in observers:
                observer.leave(path, module, told)
            return told

        handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
        handles.append(module.register_forward_hook(after, with_kwargs=True))
    with removed_after(*handles):
        yield


def _paths(model: nn.Module) -> dict[nn.Module, tuple[str, ...]]:
    found: dict[nn.Module, list[str]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        found.setdefault(module, []).append(path)
    return {module: tuple(paths) for module, paths in found.items()}


def _place(paths: tuple[str, ...], caller: str) -> str:
    """Return the path of a called module with several paths: the shortest inside the calling module."""
    inside = [path for path in paths if not caller or path.startswith(f"{caller}.")]
    return min(inside, key=lambda path: path.count("."), default=paths[0])


def _distinct(output: Any, given: Any) -> Any:
    """Return the output with an alias in place of each given tensor."""
    if type(output) is tuple:
        return tuple(_distinct(part, given) for part in output)
    if isinstance(output, Tensor) and any(leaf is output for leaf in tree_leaves(given)):
        return torch.ops.aten.alias(output)
    return output
