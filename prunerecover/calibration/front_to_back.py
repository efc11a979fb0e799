"""Passes of a network pruned from front to back, with the outputs of finished parts computed once.

A pass to a layer also runs all earlier layers. Once these are final, so are the outputs: each pass keeps the outputs of
complete modules, batch by batch, and later passes reuse the kept outputs. When memory runs out, the earliest outputs
are dropped and computed again.

Modules are never skipped if a pass calls them several times, if they hold hooks of users, if they return objects other
than tensors, or if later code writes to their output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from prunerecover.divergence.kept_outputs import MOST_KEPT
from prunerecover.model.batches import ModelInputs, call
from prunerecover.model.hooks import Reached, first_tensor, removed_after, until_reached, users_hooks

Key = tuple[int, str]  # number of a batch, path of a module


@dataclass(frozen=True)
class _Output:
    """Output of a module, with the version counters of the tensors."""

    value: Any
    versions: tuple[int, ...]

    @property
    def tensors(self) -> list[Tensor]:
        return tree_leaves(self.value)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def unwritten(self) -> bool:
        return self.versions == tuple(tensor._version for tensor in self.tensors)


class FrontToBack:
    """Runs a network up to a layer, for layers in the order of execution.

    Args:
        network: Network in evaluation mode. After a pass to a layer, everything before the layer must stay unchanged.
        batches: Batches for the passes.

    Attributes:
        calls: Number of calls of each module in a pass of the first batch, in the order of first calls.
    """

    def __init__(self, network: nn.Module, batches: Sequence[ModelInputs]) -> None:
        self.network = network
        self._numbers = {id(inputs): number for number, inputs in enumerate(batches)}
        self._modules = {n: m for n, m in network.named_modules() if not isinstance(m, torch.jit.ScriptModule)}
        self.calls, self._begins, self._ends = self._traced(batches[0])
        self._kept: dict[Key, _Output] = {}
        self._complete: tuple[str, list[str]] = ("", [])
        self._room = MOST_KEPT

    def run(self, inputs: ModelInputs, before: str) -> Any:
        """Run a batch, until a hook of the caller ends the pass.

        Args:
            inputs: The batch.
            before: Path of the first layer that may change after this pass.
        """
        number = self._numbers[id(inputs)]
        handed_on = {path: output for (of, path), output in self._kept.items() if of == number}
        seen: dict[str, _Output] = {}
        try:
            with ExitStack() as stack:
                for path, output in handed_on.items():
                    stack.enter_context(patch.object(self._modules[path], "forward", _returning(output.value)))
                for path in self._complete_before(before):
                    if path not in handed_on:
                        note = self._modules[path].register_forward_hook(_noting(path, seen))
                        stack.enter_context(removed_after(note))
                return call(self.network, inputs)
        except Reached:  # without it, the batch took another path, perhaps in another order
            for path, output in seen.items():
                self._keep(number, path, output)
            raise
        finally:
            for path, output in (handed_on | seen).items():
                if not output.unwritten:
                    self._leave_out(path)

    def renew(self) -> None:
        """Take note of replaced modules, all behind the end of every pass so far."""
        self._modules = {n: m for n, m in self.network.named_modules() if not isinstance(m, torch.jit.ScriptModule)}
        self._ends = {path: at for path, at in self._ends.items() if path in self._modules}
        self._complete = "", []

    def seen_at(self, path: str, inputs: ModelInputs, calls: int = 1) -> list[tuple[Tensor, Tensor]]:
        """Return copies of the first tensors of a module's input and output at each call, and end the pass there.

        Args:
            path: Path of the module, which may change after this pass.
            inputs: Batch to run.
            calls: Number of calls after which the pass ends.
        """
        taken, given = list[Tensor](), list[Tensor]()

        def enter(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            taken.append(first_tensor(args, kwargs).clone())  # the module may overwrite it

        def leave(_: nn.Module, __: Any, output: Any) -> None:
            given.append((output[0] if isinstance(output, tuple) else output).clone())
            if len(given) == calls:
                raise Reached

        module = self._modules[path]
        with until_reached(
            module.register_forward_pre_hook(enter, with_kwargs=True), module.register_forward_hook(leave)
        ):
            self.run(inputs, path)
        return list(zip(taken, given, strict=True))

    def _traced(self, inputs: ModelInputs) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
        """Return calls by module, times of first calls, and end times of modules that may be skipped."""
        begins, ends = dict[str, list[int]](), dict[str, int]()
        watched = {path for path, module in self._modules.items() if any(map(users_hooks, module.modules()))}
        time, handles = count(), []

        def begin(path: str) -> Callable[..., None]:
            return lambda *_: begins.setdefault(path, []).append(next(time))

        def end(path: str) -> Callable[..., None]:
            return lambda *_: ends.update({path: next(time)})

        for path, module in self._modules.items():
            handles += [module.register_forward_pre_hook(begin(path)), module.register_forward_hook(end(path))]
        with removed_after(*handles):
            call(self.network, inputs)
        calls = {path: len(times) for path, times in begins.items()}
        skipped = {path: at for path, at in ends.items() if calls[path] == 1 and path not in watched}
        return calls, {path: times[0] for path, times in begins.items()}, skipped

    def _complete_before(self, before: str) -> list[str]:
        """Return the outermost modules that are complete before a layer begins."""
        if self._complete[0] != before:
            limit, found = self._begins[before], dict[str, None]()
            for path in self._modules:  # parents come before children
                parents = (path[:at] for at, letter in enumerate(path) if letter == ".")
                if self._ends.get(path, limit) < limit and not any(parent in found for parent in parents):
                    found[path] = None
            self._complete = before, list(found)
        return self._complete[1]

    def _keep(self, number: int, path: str, output: _Output) -> None:
        for key in [key for key in self._kept if key[0] == number and key[1].startswith(f"{path}.")]:
            self._drop(key)
        self._kept[number, path] = output
        self._room -= output.nbytes
        while self._room < 0:
            self._drop(next(iter(self._kept)))

    def _leave_out(self, path: str) -> None:
        """Compute a module in every later pass, because a kept output was overwritten."""
        for key in [key for key in self._kept if key[1] == path]:
            self._drop(key)
        self._ends.pop(path, None)
        self._complete = "", []

    def _drop(self, key: Key) -> None:
        self._room += self._kept.pop(key).nbytes


def _returning(output: Any) -> Callable[..., Any]:
    return lambda *_, **__: _with_own_entries(output)


def _with_own_entries(output: Any) -> Any:
    """Return the same tensors in a new container: later code may set the entries of an output (Qwen2.5-VL)."""
    return tree_map(lambda tensor: tensor, output)


def _noting(path: str, seen: dict[str, _Output]) -> Callable[..., None]:
    """Return a hook that notes a module's output, if all leaves are tensors with a version counter."""

    def note(_: nn.Module, __: Any, output: Any) -> None:
        leaves = tree_leaves(output)
        if all(isinstance(leaf, Tensor) and not leaf.is_inference() for leaf in leaves):
            seen[path] = _Output(_with_own_entries(output), tuple(leaf._version for leaf in leaves))

    return note
