"""Training passes: uses of a module that a network makes in training and not in evaluation.

A replacement answers the calls of the replaced module. Training code may bypass calls: code that reads the module's
weights for a fused kernel, or calls further methods in a backward pass of its own (reversible blocks).

Not covered: networks that take more than their inputs in training (detectors with targets), and code that takes another
way where gradients are enabled.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from prunerecover.graph.computation_graph import ComputationGraph
from prunerecover.graph.dimensions.watching import Observer, watching_calls, watching_code
from prunerecover.graph.trace import trace_training
from prunerecover.model.batches import ModelInputs, call
from prunerecover.model.copies import apart_copy
from prunerecover.model.evaluation import evaluating, train_but_for_statistics, uncompiled
from prunerecover.model.key_values import without_kept
from prunerecover.model.paths import is_within


@dataclass(frozen=True)
class TrainingPass:
    """A pass in training mode, beside a pass in evaluation mode.

    Attributes:
        inputs: Inputs of the pass.
        graph: Graph of the pass in training mode.
        evaluated: Graph of the pass in evaluation mode.
        touched: Paths of modules with parts read in the backward pass outside calls of the module.
    """

    inputs: ModelInputs
    graph: ComputationGraph
    evaluated: ComputationGraph
    touched: frozenset[str]

    def differs(self, path: str) -> bool:
        """Whether training uses a module in any way besides the calls in evaluation."""
        read = (
            is_within(read.path, path) and not is_within(read.reader, path)
            for read in self.graph.reads - self.evaluated.reads
        )
        backward = (is_within(own, path) or is_within(path, own) for own in self.touched)
        return any(read) or any(backward) or _forms(self.graph, path) != _forms(self.evaluated, path)


def training_pass(model: nn.Module, inputs: ModelInputs, evaluated: ComputationGraph) -> TrainingPass | None:
    """Run a network in training mode, and backward if functions with a backward pass of their own are called.

    Args:
        model: Network without wrappers; not changed.
        inputs: Batch on the model's device.
        evaluated: Graph of the pass in evaluation mode.

    Returns:
        The pass, or None if the network does not run in training mode, or not with these inputs.
    """
    try:
        with _functions_called() as functions:
            graph = trace_training(apart_copy(model), inputs)
        return TrainingPass(inputs, graph, evaluated, _touched(apart_copy(model), inputs) if functions else frozenset())
    except Exception:  # any class of error, from the network's own code
        return None


def train_once(model: nn.Module, inputs: ModelInputs) -> None:
    """Run a network in training mode and backward.

    Args:
        model: Network without wrappers, with parameters of its own; gradients are written.
        inputs: Batch on the model's device.
    """
    with evaluating(model), uncompiled(), torch.enable_grad():
        train_but_for_statistics(model)
        _loss(call(model, inputs)).backward()  # type: ignore[no-untyped-call]


def _loss(output: Any) -> Tensor:
    leaves = (leaf for leaf in tree_leaves(without_kept(output)) if isinstance(leaf, Tensor) and leaf.requires_grad)
    return torch.stack([leaf.float().square().mean() for leaf in leaves]).sum()


def _touched(model: nn.Module, inputs: ModelInputs) -> frozenset[str]:
    """Return the paths of modules with parts read in the backward pass outside calls of the module."""
    seen = _Reads(set(), [])
    with evaluating(model), uncompiled(), torch.enable_grad():
        train_but_for_statistics(model)
        loss = _loss(call(model, inputs))
        with watching_calls(model, [seen]), watching_code(model, seen):
            loss.backward()  # type: ignore[no-untyped-call]
    return frozenset(seen.found)


@dataclass
class _Reads(Observer):
    """Observer of reads of modules' parts outside any call.

    Attributes:
        found: Paths of the modules.
        calls: Paths of the running modules.
    """

    found: set[str]
    calls: list[str]

    @property
    def running(self) -> bool:
        return bool(self.calls)

    def enter(self, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.calls.append(path)

    def leave(self, path: str, module: nn.Module, output: Any) -> None:
        self.calls.pop()

    def read(self, path: str, *, tensor: bool) -> None:
        if path and not self.calls:
            self.found.add(path)


def _forms(graph: ComputationGraph, path: str) -> list[tuple[object, ...]]:
    """Return the form of each call of a module."""
    return [
        (
            call.returns,
            call.hands_on,
            call.doubtful,
            call.given is None,
            call.given_shape == call.shape,
            sum(not inside.issuperset(graph.readers[index]) for index in inside),
        )
        for call, inside in zip(graph.calls, graph.inside, strict=True)
        if call.path == path
    ]


@contextmanager
def _functions_called() -> Iterator[list[type]]:
    """Collect the functions with a custom backward pass run inside a `with` block."""
    found: list[type] = []
    original = inspect.getattr_static(torch.autograd.Function, "apply")

    def apply(cls: type, *args: Any, **kwargs: Any) -> Any:
        found.append(cls)
        return original.__get__(None, cls)(*args, **kwargs)

    with mock.patch.object(torch.autograd.Function, "apply", classmethod(apply)):
        yield found
