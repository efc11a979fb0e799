"""Forward hooks on inputs and outputs of modules, and the transfer of users' hooks to replacements."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from prunerecover.model.batches import ModelInputs, call
from prunerecover.model.paths import get_module

HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
)
Called = tuple[tuple[Any, ...], dict[str, Any]]  # arguments of a call
LIBRARIES = ("torch", "transformers", "accelerate")


class Reached(BaseException):  # no Exception: an `except Exception` around the call must not catch it
    """End of a pass: a hook has seen the wanted value, and the rest of the pass is not needed."""


@contextmanager
def removed_after(*handles: RemovableHandle) -> Iterator[None]:
    """Remove hooks at the end of a `with` block."""
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def until_reached(*handles: RemovableHandle) -> Iterator[None]:
    """End a pass inside a `with` block where a hook raises `Reached`, and remove the hooks."""
    with suppress(Reached), removed_after(*handles):
        yield


@contextmanager
def recording(modules: dict[str, nn.Module]) -> Iterator[dict[str, Tensor]]:
    """Note first inputs and outputs of modules as `<name>.in` and `<name>.out` inside a `with` block."""
    seen: dict[str, Tensor] = {}
    handles = []
    for name, module in modules.items():

        def record(_: nn.Module, args: Any, kwargs: Any, output: Any, name: str = name) -> None:
            seen[f"{name}.in"] = args[0] if args else next(iter(kwargs.values()))
            seen[f"{name}.out"] = output[0] if isinstance(output, tuple) else output

        handles.append(module.register_forward_hook(record, with_kwargs=True))
    with removed_after(*handles):
        yield seen


def calls_of(model: nn.Module, paths: Iterable[str], inputs: ModelInputs) -> dict[str, Called]:
    """Return the arguments of modules in their first call of a pass, by path; uncalled modules are missing."""
    found: dict[str, Called] = {}

    def note(path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if path not in found:
            with suppress(Exception):  # arguments that cannot be copied count as no call
                found[path] = copy.deepcopy((args, kwargs))  # caches are written to later

    handles = [
        get_module(model, path).register_forward_pre_hook(
            lambda _, args, kwargs, path=path: note(path, args, kwargs), with_kwargs=True
        )
        for path in dict.fromkeys(paths)
    ]
    with removed_after(*handles), torch.no_grad():
        call(model, inputs)
    return found


@contextmanager
def counting(modules: Mapping[str, nn.Module]) -> Iterator[Counter[str]]:
    """Count the calls of modules inside a `with` block, by name, in the order of their first call."""
    calls: Counter[str] = Counter()
    handles = [
        module.register_forward_pre_hook(lambda *_, name=name: calls.update([name])) for name, module in modules.items()
    ]
    with removed_after(*handles):
        yield calls


def first_tensor(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Return the stream given to a block: the first argument, positional or by name."""
    tensors = (value for value in kwargs.values() if isinstance(value, Tensor))
    value = args[0] if args else kwargs.get("hidden_states", next(tensors, None))
    assert isinstance(value, Tensor)
    return value


def users_hooks(module: nn.Module) -> bool:
    """Whether a module has forward or backward hooks from outside torch, transformers and accelerate."""
    held = (vars(module)[name] for name in HOOKS if not name.endswith(("_with_kwargs", "_always_called")))
    return any(
        getattr(hook, "__module__", "").partition(".")[0] not in LIBRARIES for hooks in held for hook in hooks.values()
    )


def carry_hooks(old: nn.Module, new: nn.Module) -> None:
    """Give the replacement of a module the module's hooks; existing handles remove the hooks there."""
    for name in HOOKS:
        vars(new)[name] = vars(old)[name]
    new._is_full_backward_hook = old._is_full_backward_hook
