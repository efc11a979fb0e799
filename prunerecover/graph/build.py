"""Building of the computation graph from the record of a forward pass; a call with a single step becomes a node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prunerecover.graph.computation_graph import ComputationGraph, Edge, Node, NodeKind
from prunerecover.graph.dimensions.operation_names import (
    BATCH_NORMS,
    COPIES,
    GROUP_NORMS,
    LAYER_NORMS,
    MOVEMENTS,
    STATISTICS,
)
from prunerecover.graph.recorder import ModuleCall, Recorded, Recorder, Source

WEIGHED = frozenset(["convolution", "_convolution", "addmm", "mm", "bmm", "baddbmm", "linear", "_grouped_mm"])
ROUTED = "_grouped_mm"  # product of rows with the weights of the chosen experts
KERNELS = "_scaled_dot_product"  # prefix of the names of attention's kernels
NORMS = BATCH_NORMS | LAYER_NORMS | GROUP_NORMS | {"_native_batch_norm_legit"}
ROOTS = frozenset(["rsqrt", "sqrt", "div", "reciprocal", "std", "std_mean", "linalg_vector_norm", "norm"])
ARITHMETIC = frozenset(["add", "sub", "rsub", "mul", "div", "addcmul"])
CONCATENATIONS = frozenset(["cat", "stack"])
AFFINE = frozenset(["add", "sub", "rsub", "mul", "div", "neg", "addcmul"])  # with a constant
MOVING = MOVEMENTS | {"as_strided", "constant_pad_nd", "im2col", "col2im"}


def graph_of(recorder: Recorder) -> ComputationGraph:
    """Turn the record of a forward pass into a graph."""
    return _Builder(recorder).build()


class _Builder:
    """Builder of nodes from operations."""

    def __init__(self, recorder: Recorder) -> None:
        self.operations: Sequence[Recorded] = recorder.operations
        self.calls: Sequence[ModuleCall] = recorder.calls
        self.reads, self.hooks, self.judged = frozenset(recorder.reads), recorder.hooks, recorder.judged
        self.classes = recorder.classes
        self.readers: list[list[int]] = [[] for _ in self.operations]
        for number, operation in enumerate(self.operations):
            for source in operation.inputs:
                self.readers[source.operation].append(number)
        self.nodes: list[Node] = []
        self.node_of: dict[int, int] = {}  # by number of the operation

    def build(self) -> ComputationGraph:
        """Go through the operations; a call with a single step becomes a node at the last operation."""
        single = {i for i, call in enumerate(self.calls) if self._does_one_thing(call)}
        for number, operation in enumerate(self.operations):
            if operation.name in ("input", "output"):
                self._add(operation.name, operation.name, "", False, 0, [number])  # type: ignore[arg-type]
                continue
            call, whole = self.calls[operation.call], operation.call in single
            if not whole or number == call.operations[-1]:
                own = call.operations if whole else [number]
                ran = [self.operations[i] for i in own]
                kind = _kind(ran)
                name = _telling(kind, ran) if whole else operation.name
                self._add(kind, name, call.path, whole, operation.call, own)
        entered = (None if call.given is None else self._edge(call.given) for call in self.calls)
        judged = None if self.judged is None else self._edge(self.judged)
        read = {edge.node for node in self.nodes if node.kind != "output" for edge in node.inputs}
        handed_on = [
            path for path, given in self.hooks.items() if any(self.node_of[s.operation] in read for s in given)
        ]
        classes = {self.classes[path] for path in handed_on}  # places in a list of collected outputs are counted
        hooked = frozenset(path for path in self.hooks if self.classes[path] in classes)
        return ComputationGraph(tuple(self.nodes), tuple(self.calls), self.reads, tuple(entered), judged, hooked)

    def _does_one_thing(self, call: ModuleCall) -> bool:
        """Whether a call has one input, runs no submodule, and only results are read elsewhere."""
        own = set(call.operations)
        results = {source.operation for source in call.results if source is not None}
        if call.children or not own or not results <= own:
            return False
        inside = all(i in results or own.issuperset(self.readers[i]) for i in own)
        entering = {source for i in own for source in self.operations[i].inputs if source.operation not in own}
        return inside and len(entering) == 1

    def _add(self, kind: NodeKind, name: str, module: str, whole: bool, call: int, numbers: Sequence[int]) -> None:
        ran, own = [self.operations[i] for i in numbers], set(numbers)
        index, last = len(self.nodes), ran[-1]
        entering = (source for operation in ran for source in operation.inputs if source.operation not in own)
        inputs = tuple(map(self._edge, (entering if len(ran) == 1 else dict.fromkeys(entering))))
        overwrites = any(o.in_place and (not o.inputs or o.inputs[0].operation not in own) for o in ran)
        weights = tuple(dict.fromkeys(weight for operation in ran for weight in operation.weights))
        occurrence = 0 if whole else last.occurrence
        self.nodes.append(
            Node(
                index,
                kind,
                name,
                module,
                whole,
                call,
                occurrence,
                inputs,
                weights,
                ran[0].given,
                last.shape,
                overwrites,
                bool(_weighed(ran)),
                last.differentiable,
            )
        )
        self.node_of |= dict.fromkeys(numbers, index)

    def _edge(self, source: Source) -> Edge:
        return Edge(self.node_of[source.operation], source.output)


def _kind(ran: Sequence[Recorded]) -> NodeKind:
    """Return the kind of a sequence of operations with one output."""
    names = {operation.name for operation in ran}
    same_shape = ran[0].given == ran[-1].shape
    weighed = _weighed(ran)
    multiplied = [
        o for o in ran if o.name.startswith(KERNELS) or (o.name in WEIGHED and len(o.inputs) > 1 and o not in weighed)
    ]
    if multiplied:
        return "product"
    if weighed:
        return "layer" if len(weighed) == 1 else "other"
    if names & NORMS or (same_shape and names & STATISTICS and names & ROOTS and len(ran) > 1):
        return "norm"
    if names <= COPIES:
        return "identity"
    if names <= COPIES | MOVING:
        return "movement"
    several = len(ran) == 1 and len(ran[0].inputs) > 1
    if several:
        return "join" if names <= ARITHMETIC | CONCATENATIONS else "other"
    if names <= CONCATENATIONS:  # with operands independent of the input, such as an empty cache
        return "movement"
    elementwise = all(operation.pointwise or operation.name in COPIES for operation in ran)
    return "activation" if elementwise and same_shape and not names <= AFFINE | COPIES else "other"


def _weighed(ran: Sequence[Recorded]) -> list[Recorded]:
    """Return the operations that multiply the input with weights."""
    by_weights = (o for o in ran if o.name in WEIGHED and o.weights)
    return [o for o in by_weights if len(set(o.inputs)) == 1 or o.name == ROUTED]


def _telling(kind: NodeKind, ran: Sequence[Recorded]) -> str:
    """Return the name of the operation that decided the kind."""
    wanted: dict[Any, frozenset[str]] = {"layer": WEIGHED, "norm": NORMS | {"rsqrt"}}
    quiet = COPIES | MOVING | AFFINE
    known = [o.name for o in ran if o.name in wanted.get(kind, frozenset())]
    loud = [o.name for o in ran if o.name not in quiet]
    return (known or loud or [ran[-1].name])[0]
