"""The computation graph: layers, activations, norms and joins of a network, and the edges between nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from matplotlib.figure import Figure

from prunerecover.display.summary import Summarised, Summary
from prunerecover.graph.figure import DrawnLayer, Status, plot_layers
from prunerecover.graph.recorder import ModuleCall, PartRead
from prunerecover.model.paths import is_within, parent_path
from prunerecover.plan.edits import Bypass, Edit, Narrow, Patch, Remove

NodeKind = Literal["input", "layer", "activation", "norm", "join", "product", "identity", "movement", "other", "output"]


@dataclass(frozen=True)
class Edge:
    """An output of a node: index of the node, and number of the output (a split has several)."""

    node: int
    output: int = 0


@dataclass(frozen=True)
class Node:
    """A call of a module with a single step, or an operation in the code of a module with several.

    Attributes:
        index: Position in order of execution.
        kind: "layer" (a product with weights: linear or convolution), "activation" (one input, element by element),
            "norm", "join" (element-wise arithmetic or concatenation of several operands), "product" (of activations
            with activations, as in attention), "identity", "movement" (views, permutations, parts), "other", "input" or
            "output".
        operation: Name of the most telling ATen operator: "convolution", "relu", "add", ...
        module: Path of the called module if `whole`, else of the module with the operation in its code.
        whole: Whether the node is all of a call of `module`.
        call: Number of the module call, in `ComputationGraph.calls`.
        occurrence: Number of earlier operations of the same name in the call, if not `whole`.
        inputs: Edges to the inputs, in order of arguments.
        weights: Paths of the parameters and buffers read.
        given: Shape of the first input.
        shape: Shape of the first output.
        in_place: Whether the node overwrites an operand.
        weighed: Whether the node multiplies inputs with weights.
        differentiable: Whether gradients can flow through the node.
    """

    index: int
    kind: NodeKind
    operation: str
    module: str
    whole: bool
    call: int
    occurrence: int
    inputs: tuple[Edge, ...]
    weights: tuple[str, ...] = ()
    given: tuple[int, ...] = ()
    shape: tuple[int, ...] = ()
    in_place: bool = False
    weighed: bool = False
    differentiable: bool = True

    @property
    def is_convolution(self) -> bool:
        """Whether a convolution makes the output."""
        return self.operation in ("convolution", "_convolution")

    @property
    def channels(self) -> int:
        """Dimension of the channels of a layer, before and after."""
        return 1 if self.is_convolution else -1


@dataclass(frozen=True)
class ComputationGraph(Summarised):
    """Computation of a network in a forward pass, node by node.

    Attributes:
        nodes: Nodes in order of execution: inputs first, the output last.
        calls: All calls of modules, in order of the beginning.
        reads: Reads of a module's parts by code outside the module.
        entered: Source of the first tensor given to each call, by call; None if independent of the model's input.
        judged: Source of the output by which the model is judged, among several named outputs.
        hooked: Paths of modules whose inputs or outputs are passed on by hooks of the network's own code.
    """

    nodes: tuple[Node, ...]
    calls: tuple[ModuleCall, ...]
    reads: frozenset[PartRead] = frozenset()
    entered: tuple[Edge | None, ...] = ()
    judged: Edge | None = None
    hooked: frozenset[str] = frozenset()

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """Readers of any output of a node, by node, in order of execution."""
        found: list[dict[int, None]] = [{} for _ in self.nodes]
        for node in self.nodes:
            for edge in node.inputs:
                found[edge.node][node.index] = None
        return tuple(tuple(own) for own in found)

    @cached_property
    def used_by(self) -> tuple[tuple[int, ...], ...]:
        """Readers with an effect on the output, by node: further readers compute values kept in the model."""
        return tuple(tuple(r for r in own if r in self.reached_by_output) for own in self.readers)

    @cached_property
    def by_module(self) -> dict[str, tuple[Node, ...]]:
        """Nodes for whole calls of a module, by path of the module."""
        found: dict[str, tuple[Node, ...]] = {}
        for node in self.nodes:
            if node.whole:
                found[node.module] = (*found.get(node.module, ()), node)
        return found

    @cached_property
    def first_in(self) -> dict[str, int]:
        """Index of the first node in each module, by path."""
        found: dict[str, int] = {}
        for node in self.nodes:
            path = node.module
            while path and path not in found:
                found[path] = node.index
                path = parent_path(path)
        return found

    @cached_property
    def inside(self) -> tuple[frozenset[int], ...]:
        """Nodes in a call and in the inner calls, by call."""
        found: list[set[int]] = [set() for _ in self.calls]
        for node in self.nodes:
            number = node.call if node.kind not in ("input", "output") else -1
            while number >= 0:
                found[number].add(node.index)
                number = self.calls[number].parent
        return tuple(map(frozenset, found))

    @cached_property
    def times(self) -> Counter[str]:
        """Number of calls of each module, by path."""
        return Counter(call.path for call in self.calls)

    @cached_property
    def ancestors(self) -> tuple[int, ...]:
        """Nodes behind a node, and the node itself, as bits, by node."""
        found: list[int] = []
        for node in self.nodes:
            bits = 1 << node.index
            for edge in node.inputs:
                bits |= found[edge.node]
            found.append(bits)
        return tuple(found)

    def is_overwritten(self, node: Node, passing: Set[int]) -> bool:
        """Whether a later node overwrites the output of a node, directly or through nodes in `passing`.

        Args:
            node: Node of the graph.
            passing: Indices of nodes that pass on their input.
        """

        def stop(reader: Node) -> bool:
            return reader.index not in passing and reader.kind not in ("identity", "movement")

        return any(reader.in_place and reader.index not in passing for reader in self.ahead(node, stop))

    def reader_of_parts(self, path: str) -> str | None:
        """Return the path of an outside module whose code reads parts missing in a replacement of `path`, or None."""
        below = f"{path}."
        readers = (
            read.reader
            for read in sorted(self.reads)
            if read.path.startswith(below) or (read.path == path and not read.tensor)
            if not f"{read.reader}.".startswith(below)
        )
        return next(readers, None)

    def hooked_in(self, path: str) -> str | None:
        """Return the path of a module at or in `path` that the network's own hooks read, or None."""
        return next((own for own in sorted(self.hooked) if is_within(own, path)), None)

    def of_kind(self, *kinds: NodeKind) -> tuple[Node, ...]:
        """Return the nodes of some kinds."""
        return tuple(node for node in self.nodes if node.kind in kinds)

    def name(self, node: Node) -> str:
        """Return the name of a node: the path of the module, with the operation where the module does more."""
        several = len(self.by_module.get(node.module, ())) > 1
        number = self.calls[node.call].number if node.call < len(self.calls) else 0
        if node.whole:
            return f"{node.module}:{number}" if several else node.module
        where = f"{node.module}:{number}" if number else node.module
        return f"{where}/{node.operation}:{node.occurrence}".lstrip("/")

    def ahead(self, start: Node, stop: Callable[[Node], bool]) -> Iterator[Node]:
        """Yield the nodes reached forward; nodes where `stop` holds are yielded and not passed."""
        yield from self._reached(start.index, stop, lambda i: self.readers[i])

    def behind(self, start: Node, stop: Callable[[Node], bool]) -> Iterator[Node]:
        """Yield the nodes reached backward; nodes where `stop` holds are yielded and not passed."""
        yield from self._reached(start.index, stop, lambda i: (edge.node for edge in self.nodes[i].inputs))

    def _reached(
        self, start: int, stop: Callable[[Node], bool], following: Callable[[int], Iterable[int]]
    ) -> Iterator[Node]:
        seen, waiting = {start}, [start]
        while waiting:
            for i in following(waiting.pop()):
                if i not in seen:
                    seen.add(i)
                    yield self.nodes[i]
                    if not stop(self.nodes[i]):
                        waiting.append(i)

    @cached_property
    def reached_by_output(self) -> frozenset[int]:
        """Indices of the nodes that the output depends on; all nodes if there is no output."""
        outputs = self.of_kind("output")
        if not outputs:
            return frozenset(range(len(self.nodes)))
        return frozenset(n.index for out in outputs for n in self.behind(out, lambda _: False)) | {
            out.index for out in outputs
        }

    def plot(self, edits: Sequence[Edit] = (), title: str | None = None) -> Figure:
        """Draw the layers in order of execution, with the effect of a plan's edits on each layer.

        Args:
            edits: Edits of a plan for the network.
            title: Heading; None: the number of removed layers.

        Raises:
            ValueError: If the network has no layer.
        """
        return plot_layers(drawn_layers(self, edits), title)

    def summary(self) -> Summary:
        """Return the number of nodes, and the first nodes; `nodes` has all."""
        counts = ", ".join(f"{n} {kind}" for kind, n in Counter(node.kind for node in self.nodes).items())
        title = f"Computation graph of {len(self.nodes)} nodes: {counts}"
        return Summary.of_list(title, ("", "kind", "name", "shape", "reads"), self.nodes, self._row)

    def _row(self, node: Node) -> tuple[object, ...]:
        read = ", ".join(str(edge.node) for edge in node.inputs)
        return node.index, node.kind, self.name(node), "x".join(map(str, node.shape)), read


def drawn_layers(graph: ComputationGraph, edits: Sequence[Edit] = ()) -> tuple[DrawnLayer, ...]:
    """Return the layers in order of execution, with the effect of edits on each layer.

    Args:
        graph: Graph of the dense network.
        edits: Edits of a plan for the network.
    """
    multiplying = tuple({f"{node.module}." for node in graph.of_kind("product") if node.module})
    identity = {edit.unit for edit in edits if isinstance(edit, Bypass) and edit.kind == "layer"}
    replaced = [path for edit in edits if isinstance(edit, Bypass | Patch) for path in edit.modules]
    replaced += [edit.unit for edit in edits if isinstance(edit, Remove)]
    lost = _lost_outputs(edits)
    found = []
    for node in graph.of_kind("layer"):
        width = node.shape[node.channels]
        gone = any(is_within(node.module, path) for path in replaced)
        status: Status = "attention" if node.module.startswith(multiplying) else "kept"
        if node.module in identity:
            status = "identity"
        elif gone:
            status = "gone"
        elif lost[node.module]:
            status = "narrowed"
        found.append(DrawnLayer(graph.name(node), width, width - min(lost[node.module], width), status))
    return tuple(found)


def _lost_outputs(edits: Sequence[Edit]) -> Counter[str]:
    lost: Counter[str] = Counter()
    for edit in edits:
        if not isinstance(edit, Narrow):
            continue
        for part in edit.group:
            path, _, name = part.tensor.rpartition(".")
            if name == "weight" and part.makes:
                lost[path] += len(edit.gone) * part.span * len(part.offsets)
    return lost
