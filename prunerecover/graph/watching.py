"""Watch one forward pass of a model: every operation of PyTorch, and every call of a module, as they happen.

Operations are seen below autograd, whatever the model's code looks like, on any device: the meta device, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from prunerecover.model.batches import ModelInputs, call
from prunerecover.model.evaluation import evaluating, train_but_for_statistics, uncompiled
from prunerecover.model.hooks import removed_after


class CallObserver(Protocol):
    """What is told of calls of modules."""

    def enter(self, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take note that the module at `path` is called."""

    def leave(self, path: str, module: nn.Module, output: Any) -> None:
        """Take note that it returns."""


class Observer(CallObserver, Protocol):
    """What is told of a forward pass."""

    def operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Take note of an ATen operator, its arguments, and what it returned."""


class CodeObserver(Protocol):
    """What is told of the code between the calls of a network."""

    @property
    def running(self) -> bool:
        """Whether a call has begun that has not ended."""

    def read(self, path: str, *, tensor: bool) -> None:
        """Take note that code reads a part of the module at `path`: a parameter or buffer, or a submodule."""

    def hooked(self, path: str, tensors: Sequence[Tensor]) -> None:
        """Take note that a hook which the network's own code put on the module at `path` is given some tensors."""


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, observers: tuple[Observer, ...]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.observers = observers

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for observer in self.observers:
            observer.operation(func, args, kwargs or {}, out)
        return out


def watch(model: nn.Module, inputs: ModelInputs, *observers: Observer, training: bool = False) -> Any:
    """Run a model once, and tell observers what happens.

    A module without submodules that returns its input as it is (dropout, an identity, what surgery left) is seen to
    return an alias of it, so that what reads its output can be told from what reads its input.

    Args:
        model: Is bit-identical afterwards.
        inputs: One batch.
        observers: Are told of each event in this order.
        training: Whether it runs in training mode, not in evaluation mode.

    Returns:
        What the model returned.
    """
    with evaluating(model), uncompiled(), watching_calls(model, observers), _Watch(observers):
        if training:
            train_but_for_statistics(model)
        return call(model, inputs)


@contextmanager
def watching_code(model: nn.Module, observer: CodeObserver) -> Iterator[None]:
    """Tell an observer inside a `with` block which parts of modules code reads, and which hooks it registers.

    Such a hook is given aliases of tensors, so that what it hands on can be told from what the network itself reads.

    Args:
        model: That is watched inside the block.
        observer: Is told of each event.
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

    nn.Module.__getattr__ = noted  # type: ignore[method-assign]
    nn.Module.register_forward_hook = registering(after)  # type: ignore[method-assign]
    nn.Module.register_forward_pre_hook = registering(before)  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.__getattr__ = read  # type: ignore[method-assign]
        nn.Module.register_forward_hook = after  # type: ignore[method-assign]
        nn.Module.register_forward_pre_hook = before  # type: ignore[method-assign]


@contextmanager
def watching_calls(model: nn.Module, observers: Sequence[CallObserver]) -> Iterator[None]:
    """Tell observers inside a `with` block of the calls of a model's modules.

    Args:
        model: That is watched.
        observers: Are told of each event in this order.
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
    """Return the path by which a module that has several is called: the shortest inside the module that calls it."""
    inside = [path for path in paths if not caller or path.startswith(f"{caller}.")]
    return min(inside, key=lambda path: path.count("."), default=paths[0])


def _distinct(output: Any, given: Any) -> Any:
    """Return the output with an alias in the place of a tensor that was given."""
    if type(output) is tuple:
        return tuple(_distinct(part, given) for part in output)
    if isinstance(output, Tensor) and any(leaf is output for leaf in tree_leaves(given)):
        return torch.ops.aten.alias(output)
    return output
