"""Record of a forward pass: operations, sources of operands, and module calls.

Tensors independent of the model's input (weights, masks, constant tables) are not part of the record; operations name
the parameters and buffers read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from prunerecover.graph.dimensions.operation_names import BLANK
from prunerecover.graph.dimensions.watching import Observer, Operation
from prunerecover.model.batches import ModelInputs
from prunerecover.model.key_values import without_kept

JUDGED = ("logits", "last_hidden_state")  # outputs by which a model is judged, if named


class Source(NamedTuple):
    """An output of a recorded operation: number of the operation, and number of the output."""

    operation: int
    output: int = 0


@dataclass(frozen=True)
class Recorded:
    """An operation that depends on the model's input.

    Attributes:
        name: Name of the ATen operator, without the underscore of operations in place; "input" for a tensor given to
            the model, "output" for the model's result.
        in_place: Whether the operation overwrote its first operand.
        call: Number of the module call around the operation.
        occurrence: Number of earlier operations of the same name in the call, including operations on constants.
        inputs: Sources of the operands that depend on the model's input, in the order of arguments.
        weights: Paths of the parameters and buffers read, directly or through operations on parameters and buffers
            alone.
        shape: Shape of the first output.
        given: Shape of the first operand that depends on the model's input.
        pointwise: Whether PyTorch tags the operation as element-wise.
        differentiable: Whether gradients can flow through: an output is no whole number, and the operation is no
            detach.
    """

    name: str
    in_place: bool
    call: int
    occurrence: int
    inputs: tuple[Source, ...]
    weights: tuple[str, ...]
    shape: tuple[int, ...]
    given: tuple[int, ...]
    pointwise: bool
    differentiable: bool = True


class PartRead(NamedTuple):
    """A read of a module's part by code of another module, outside the first.

    Attributes:
        path: Path of the module with the part.
        reader: Path of the module whose code reads the part.
        tensor: Whether the part is a parameter or buffer, not a submodule.
    """

    path: str
    reader: str
    tensor: bool


@dataclass
class ModuleCall:
    """A call of a module.

    Attributes:
        path: Path of the module.
        parent: Number of the call around; -1 for the model's own.
        number: Number of earlier calls of the module.
        operations: Operations of the call itself, without those of submodules.
        children: Numbers of the calls of submodules.
        given: Source of the first tensor among the arguments, if it depends on the model's input.
        given_shape: Shape of the first tensor among the arguments.
        results: Sources of the returned tensors; None for a tensor independent of the model's input.
        returns: Number of returned values: 1 for a tensor, n for a tuple whose first entry is a tensor, 0 for a tuple
            of a single tensor; -1 otherwise.
        shape: Shape of the first returned tensor.
        hands_on: Whether a returned tensor behind the first was not computed in the call from the model's input.
        doubtful: Whether only a trial can tell if a replacement would do: the first argument was no tensor but, for
            example, a list, or values behind the first returned tensor were no tensors but, for example, the size of an
            image.
    """

    path: str
    parent: int
    number: int
    operations: list[int] = field(default_factory=list)
    children: list[int] = field(default_factory=list)
    given: Source | None = None
    given_shape: tuple[int, ...] = ()
    results: tuple[Source | None, ...] = ()
    returns: int = -1
    shape: tuple[int, ...] = ()
    hands_on: bool = False
    doubtful: bool = False


@dataclass(frozen=True)
class _Value:
    """Content of a tensor: no `source` if independent of the model's input; `weights` behind the values."""

    source: Source | None = None
    weights: tuple[str, ...] = ()


CONSTANT = _Value()


class Recorder(Observer):
    """Observer that records a forward pass, for `watch`.

    Args:
        model: Watched network.
        inputs: Inputs of the pass.

    Attributes:
        operations: Operations in order of execution; the model's inputs first.
        calls: Calls in order of the beginning; the first is the model's own.
        reads: Reads of a module's parts by code outside the module.
        hooks: Sources of tensors given to hooks of the network's own code, by path of the module.
        classes: Classes of all modules, by path.
        judged: Source of the output by which a model is judged, among several named outputs.
    """

    def __init__(self, model: nn.Module, inputs: ModelInputs) -> None:
        self.operations: list[Recorded] = []
        self.calls: list[ModuleCall] = []
        self.reads: set[PartRead] = set()
        self.hooks: dict[str, set[Source]] = {}
        self.judged: Source | None = None
        self.classes = {path: type(module) for path, module in model.named_modules()}
        self._values: MutableMapping[Tensor, _Value] = WeakTensorKeyDictionary()
        self._bases: MutableMapping[Tensor, Tensor] = WeakTensorKeyDictionary()
        self._views: MutableMapping[Tensor, MutableMapping[Tensor, None]] = WeakTensorKeyDictionary()
        self._open: list[int] = []
        self._times: Counter[str] = Counter()
        self._begun: dict[int, int] = {}
        self._ran: Counter[tuple[int, str]] = Counter()
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            self._values[tensor] = _Value(weights=(name,))
        for leaf in tree_leaves((inputs.args, inputs.kwargs)):
            if isinstance(leaf, Tensor):
                self._values[leaf] = _Value(self._add("input", (), leaf))

    @property
    def running(self) -> bool:
        """Whether a call has begun and not ended."""
        return bool(self._open)

    def read(self, path: str, *, tensor: bool) -> None:
        """Note that code reads a part of a module: a parameter or buffer, or a submodule."""
        reader = self.calls[self._open[-1]].path if self._open else None
        if path and reader is not None and not f"{reader}.".startswith(f"{path}."):
            self.reads.add(PartRead(path, reader, tensor))

    def hooked(self, path: str, tensors: Sequence[Tensor]) -> None:
        """Note the tensors given to a module's hook that the network's own code registered."""
        sources = (self._value(tensor).source for tensor in tensors)
        self.hooks.setdefault(path, set()).update(source for source in sources if source is not None)

    def enter(self, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note a call of a module."""
        parent, number = (self._open[-1] if self._open else -1), self._times[path]
        self._times[path] += 1
        made = ModuleCall(path, parent, number)
        first = next((leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)), None)
        if first is not None:
            made.given, made.given_shape = self._value(first).source, tuple(first.shape)
            made.doubtful = first is not next(iter((*args, *kwargs.values())))
        if parent >= 0:
            self.calls[parent].children.append(len(self.calls))
        self._begun[len(self.calls)] = len(self.operations)
        self._open.append(len(self.calls))
        self.calls.append(made)

    def leave(self, path: str, module: nn.Module, output: Any) -> None:
        """Note the return of a module."""
        number = self._open.pop()
        call, begun = self.calls[number], self._begun.pop(number)
        tensors = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]
        call.results = tuple(self._value(tensor).source for tensor in tensors)
        call.shape = tuple(tensors[0].shape) if tensors else ()
        call.hands_on = any(source is None or source.operation < begun for source in call.results[1:])
        if isinstance(output, Tensor):
            call.returns = 1
        elif type(output) is tuple and output and isinstance(output[0], Tensor):
            call.returns = len(output) if len(output) > 1 else 0
            call.doubtful |= any(not isinstance(leaf, Tensor) for leaf in tree_leaves(output[1:]) if leaf is not None)

    def operation(self, operation: Operation) -> None:
        """Note an operation, and the content of its outputs."""
        plain, call = operation.name, self._open[-1] if self._open else 0
        tensors, outputs = operation.tensors, operation.outputs
        occurrence = self._ran[call, plain]
        self._ran[call, plain] += 1
        values = [self._value(tensor) for tensor in tensors]
        sources = tuple(value.source for value in values if value.source is not None)
        weights = tuple(dict.fromkeys(name for value in values for name in value.weights))
        if operation.func.is_view and tensors:
            base = self._bases.get(tensors[0], tensors[0])
            for tensor in outputs:
                self._bases[tensor] = base
                self._views.setdefault(base, WeakTensorKeyDictionary())[tensor] = None
        if not sources or plain in BLANK or not outputs:
            for tensor in outputs:
                self._values[tensor] = CONSTANT if plain in BLANK else _Value(weights=weights)
            return
        given = next(tensor for tensor, value in zip(tensors, values, strict=True) if value.source is not None)
        recorded = Recorded(
            plain,
            operation.in_place,
            call,
            occurrence,
            sources,
            weights,
            tuple(outputs[0].shape),
            tuple(given.shape),
            torch.Tag.pointwise in operation.func.tags,
            plain != "detach" and any(t.is_floating_point() or t.is_complex() for t in outputs),
        )
        number = len(self.operations)
        self.operations.append(recorded)
        if self._open:
            self.calls[self._open[-1]].operations.append(number)
        for k, tensor in enumerate(outputs):
            self._values[tensor] = _Value(Source(number, k))
        if operation.in_place and (whole := self._bases.get(tensors[0])) is not None:
            self._values[whole] = _Value(Source(number))  # a part was written: the whole depends on the input now
        elif operation.in_place:
            for view in list(self._views.get(tensors[0], ())):
                self._values[view] = _Value(Source(number))

    def finish(self, output: Any) -> None:
        """Note the model's output, without caches of keys and values, which are by-products."""
        leaves = tree_leaves(without_kept(output), is_leaf=lambda node: type(node).__name__.endswith("Cache"))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        sources = tuple(dict.fromkeys(s for tensor in tensors if (s := self._value(tensor).source) is not None))
        if tensors:
            self._add("output", sources, tensors[0])
        named = output if isinstance(output, Mapping) else {}
        judged = next((named[name] for name in JUDGED if isinstance(named.get(name), Tensor)), None)
        self.judged = None if judged is None else self._value(judged).source

    def _value(self, tensor: Tensor) -> _Value:
        return self._values.get(tensor, CONSTANT)

    def _add(self, name: str, sources: tuple[Source, ...], tensor: Tensor) -> Source:
        self.operations.append(Recorded(name, False, 0, 0, sources, (), tuple(tensor.shape), (), False))
        return Source(len(self.operations) - 1)
