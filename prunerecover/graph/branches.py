"""Residual branches and blocks in the graph: addends of a stream, and modules with a stream in and out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property

from torch import nn

from prunerecover.graph.computation_graph import ComputationGraph, Edge, Node
from prunerecover.graph.regions import addends, branches_off, common_module, follows_scale, head_layers, streams_behind
from prunerecover.model.paths import get_module, is_within, parent_path
from prunerecover.plan.edit_parts import StandIn
from prunerecover.plan.edits import Bypass
from prunerecover.plan.kinds import Kind


@dataclass(frozen=True)
class GraphUnit:
    """Nodes that can be removed together.

    Attributes:
        name: Path of the module that holds the nodes, or of the first of several.
        kind: "block", "attention" or "mlp" (a residual branch without attention).
        modules: Replacement of each module, by path.
        nodes: Indices of the removed nodes.
        block: Path of the block that is or contains the unit; empty without a block.
        doubtful: Whether only a trial can tell if the pruned network still runs: shapes inside change, or the unit
            reads a list, or returns numbers behind the tensor, which no replacement returns.
    """

    name: str
    kind: Kind
    modules: dict[str, StandIn]
    nodes: frozenset[int]
    block: str = ""
    doubtful: bool = False

    @property
    def bypass(self) -> Bypass:
        """The edit that removes the unit."""
        return Bypass(unit=self.name, kind=self.kind, modules=self.modules)  # type: ignore[arg-type]


@dataclass
class BranchFinder:
    """Finder of branches and blocks in a graph.

    Attributes:
        model: Network of the graph.
        graph: Computation graph of a forward pass.
        refused: Reasons of refused blocks and branches, by path.
    """

    model: nn.Module
    graph: ComputationGraph
    refused: dict[str, str] = field(default_factory=dict)

    def find(self) -> tuple[GraphUnit, ...]:
        """List blocks and branches, in order of execution; a branch alone in a block counts as the block."""
        blocks = self.blocks()
        joins = self.graph.of_kind("join")
        branches = [
            branch
            for branch in (self._branch(join, *sides, blocks) for join in joins for sides in self._sides(join))
            if branch is not None and not any(self._same(branch, block) for block in blocks)
        ]
        return tuple(sorted((*blocks, *branches), key=lambda unit: (min(unit.nodes), -len(unit.nodes))))

    def blocks(self) -> tuple[GraphUnit, ...]:
        """List the repeated children of a container that take a stream and return a stream of the same shape."""
        found = []
        for number, call in enumerate(self.graph.calls):
            parent = get_module(self.model, parent_path(call.path)) if call.path else None
            if (
                not isinstance(parent, nn.ModuleList | nn.Sequential)
                or self.graph.times[call.path] > 1
                or not call.children
            ):
                continue
            classes = Counter(type(child) for child in parent)
            inside = self.graph.inside[number]
            layers = [n for n in inside if self.graph.nodes[n].kind in ("layer", "product")]
            if classes[type(get_module(self.model, call.path))] < 2 or len(layers) < 2:
                continue
            reason = self._why_no_block(number, inside)
            if reason:
                self.refused[call.path] = reason
                continue
            result = self._edges_out(inside)
            copied = any(self.graph.nodes[r].in_place for e in result for r in self.graph.readers[e] if r not in inside)
            stand_in = StandIn(leaves="copy" if copied else "identity", returns=call.returns)
            found.append(GraphUnit(call.path, "block", {call.path: stand_in}, inside, call.path, call.doubtful))
        stages = {b.name for b in found if sum(other.name.startswith(f"{b.name}.") for other in found) > 1}
        found = [b for b in found if b.name not in stages]
        return tuple(b for b in found if not any(b.name.startswith(f"{other.name}.") for other in found))

    def _why_no_block(self, number: int, inside: frozenset[int]) -> str:
        call = self.graph.calls[number]
        if call.given is None:
            return "it does not take a tensor first; remove branches or layers in it"
        if call.given_shape != call.shape:
            return "its output has another shape than its input; remove branches or layers in it"
        if inside & self._head:
            return "it holds layers of the head; remove branches or layers before these"
        if len(self._edges_out(inside)) > 1:
            return "something else reads what it computes inside; remove branches or layers in it"
        return self._why_no_stand_in(number)

    def _why_no_stand_in(self, number: int) -> str:
        """Return the reason why a module cannot be replaced, or an empty string."""
        call = self.graph.calls[number]
        if call.returns < 0:
            return f"'{call.path}' returns no tensor first; have it return its stream first"
        if call.hands_on:
            return f"'{call.path}' returns several tensors, which others would miss; remove branches or layers in it"
        hooked = self.graph.hooked_in(call.path)
        if hooked is not None:
            return (
                f"a hook that the network puts on '{hooked}' while it runs hands on its output, and would go with it; "
                "collect fewer outputs, or remove branches or layers in it"
            )
        reader = self.graph.reader_of_parts(call.path)
        if reader is not None:
            code = type(get_module(self.model, reader)).__name__
            return f"the code of '{reader}' ({code}) reads parts of '{call.path}'; have it call the module alone"
        return ""

    def _edges_out(self, inside: Set[int]) -> list[int]:
        return [n for n in inside if any(reader not in inside for reader in self.graph.readers[n])]

    def _sides(self, join: Node) -> list[tuple[Edge, int]]:
        """Return the operands of a sum that are branches, each with the node before the branch."""
        if join.operation != "add" or len(join.inputs) != 2:
            return []
        nodes, (first, second) = self.graph.nodes, join.inputs
        if nodes[first.node].shape != join.shape or nodes[second.node].shape != join.shape:
            return []
        for stream, branch in ((first, second), (second, first)):
            source = branches_off(self.graph, addends(self.graph, stream), branch)
            if source is not None:
                return [(branch, source)]
        streams = streams_behind(self.graph, join)
        sources = [branches_off(self.graph, streams, edge) for edge in join.inputs]
        if None not in sources:
            return [(edge, source) for edge, source in zip(join.inputs, sources, strict=True) if source is not None]
        sides = [(self._serving(join, edge, -1), edge) for edge in join.inputs]
        (fewer, _), (more, branch) = sorted(sides, key=lambda side: self._layers(side[0]))
        shared = self._read_from_outside(fewer) & self._read_from_outside(more)
        if self._layers(fewer) != 1 or len(shared) != 1 or self._read_from_outside(fewer) != shared:
            return []
        return [(branch, next(iter(shared)))]

    def _branch(self, join: Node, branch: Edge, source: int, blocks: Sequence[GraphUnit]) -> GraphUnit | None:
        graph = self.graph
        serving = self._serving(join, branch, source)
        weighty = [n for n in sorted(serving) if graph.nodes[n].kind in ("layer", "product")]
        if not weighty or serving & self._head:
            return None
        calls = self._largest_calls(serving)
        name = self._name(weighty, calls)
        leaving = self._exit(join, branch, serving, calls)
        if leaving is None:
            self.refused[name] = f"no module returns the addend of '{graph.name(join)}'; compute it in a module"
            return None
        alone = [n for n in sorted(serving) if not any(n in self.graph.inside[c] for c in calls)]
        if any(self.graph.times[graph.calls[graph.nodes[n].call].path] > 1 and graph.nodes[n].weights for n in alone):
            self.refused[name] = "its modules are called several times; give each call its own, or narrow them"
            return None
        reason = next(filter(None, map(self._why_no_stand_in, calls)), "")
        if reason:
            self.refused[name] = reason
            return None
        path, leaves = leaving
        passing = frozenset[int]().union(*(graph.inside[c] for c in calls if graph.calls[c].path != path))
        modules = {graph.calls[c].path: self._hands_on(c, passing) for c in calls}
        modules[path] = StandIn(leaves=leaves, returns=modules[path].returns)  # type: ignore[arg-type]
        kind: Kind = "attention" if any(graph.nodes[n].kind == "product" for n in serving) else "mlp"
        doubtful = bool(alone) and any(
            graph.calls[c].given_shape != graph.calls[c].shape for c in calls if graph.calls[c].path != path
        )
        doubtful = doubtful or any(graph.calls[c].doubtful for c in calls) or self._kept_besides(serving, calls)
        block = next((b.name for b in blocks if serving <= b.nodes), "")
        return GraphUnit(name, kind, modules, serving, block, doubtful)

    def _kept_besides(self, serving: Set[int], calls: Sequence[int]) -> bool:
        """Whether remaining code reads a branch for a value outside the output, for example a cache."""
        inside = frozenset[int]().union(*(self.graph.inside[c] for c in calls))
        readers = (reader for n in serving for reader in self.graph.readers[n])
        return any(reader not in inside | self.graph.reached_by_output for reader in readers)

    def _hands_on(self, number: int, passing: frozenset[int]) -> StandIn:
        """Return a replacement that passes on a module's input: a copy, if remaining code writes into the stream.

        Args:
            number: Number of the module's call.
            passing: Nodes inside modules that pass on their input.
        """
        inside = self.graph.inside[number]
        ends = (self.graph.nodes[index] for index in self._edges_out(inside))
        copied = any(self.graph.is_overwritten(node, passing) for node in ends)
        return StandIn(leaves="copy" if copied else "identity", returns=self.graph.calls[number].returns)

    def _name(self, weighty: Sequence[int], calls: Sequence[int]) -> str:
        """Name a branch by the module with exactly its layers, else by the first layer, or the first and last."""
        graph = self.graph
        common = common_module([graph.nodes[n].module for n in weighty])
        held = [n.index for n in graph.of_kind("layer", "product") if is_within(n.module, common)]
        if common and set(held) <= set(weighty):
            return common
        names = [graph.name(graph.nodes[n]) for n in (weighty[0], weighty[-1])]
        holding = next((graph.calls[c].path for c in calls if weighty[0] in graph.inside[c]), names[0])
        return holding if holding != names[0] or len(weighty) == 1 else f"{holding}+{names[1].rpartition('.')[2]}"

    def _serving(self, join: Node, branch: Edge, source: int) -> frozenset[int]:
        """The nodes read only by the end of a branch, back to the source, and beside the source inside the modules."""
        graph = self.graph
        if graph.used_by[branch.node] != (join.index,):
            return frozenset()
        found = {branch.node}
        for index in range(branch.node - 1, source, -1):
            readers = graph.used_by[index]
            descends = source < 0 or bool(self.graph.ancestors[index] >> source & 1)
            if readers and found.issuperset(readers) and graph.nodes[index].kind != "input" and descends:
                found.add(index)
        calls = self._largest_calls(found, partly=True)
        for index in range(branch.node - 1, -1, -1):
            readers = graph.used_by[index]
            only_here = index not in found and readers and found.issuperset(readers)
            if only_here and any(index in self.graph.inside[c] for c in calls):
                found.add(index)
        return frozenset(found)

    def _largest_calls(self, nodes: Set[int], *, partly: bool = False) -> list[int]:
        """The outermost calls with all used nodes among `nodes`; `partly`: also attentions with some of `nodes`."""
        found: list[int] = []
        for number, inside in enumerate(self.graph.inside):
            call = self.graph.calls[number]
            shared = self.graph.times[call.path] > 1
            if not call.path or not inside or shared or any(self._is_below(number, other) for other in found):
                continue
            used = inside & self.graph.reached_by_output
            if (used and used <= nodes) or (partly and inside & nodes and self._is_attention(number)):
                found.append(number)
        return found

    def _is_attention(self, number: int) -> bool:
        return any(
            self.graph.nodes[n].kind == "product" and self.graph.nodes[n].call == number
            for n in self.graph.inside[number]
        )

    def _is_below(self, number: int, other: int) -> bool:
        while number >= 0:
            if number == other:
                return True
            number = self.graph.calls[number].parent
        return False

    def _exit(self, join: Node, branch: Edge, serving: Set[int], calls: Sequence[int]) -> tuple[str, str] | None:
        """The module whose output becomes zero, and the form of the zero."""
        index, moved = branch.node, False
        while index in serving:
            behind = (c for c in calls if index in self.graph.inside[c] and not follows_scale(self.graph, c, calls))
            call = next(behind, None)
            if call is not None:
                own = self.graph.calls[call]
                in_place = join.in_place and join.inputs[0] == branch
                kept = all(self.graph.calls[c].given_shape == self.graph.calls[c].shape for c in calls)
                if (moved or in_place) and not kept and self.graph.nodes[min(serving)].given != own.shape:
                    return None
                return own.path, "zeros" if moved or in_place else "zero"
            node = self.graph.nodes[index]
            scaled = node.kind == "other" and node.operation == "mul"
            if len(set(node.inputs)) != 1 or not (scaled or node.kind in ("movement", "identity")):
                return None
            index, moved = node.inputs[0].node, True
        return None

    def _same(self, branch: GraphUnit, block: GraphUnit) -> bool:
        """Whether a block has no effect besides a single branch."""
        rest = [self.graph.nodes[n] for n in block.nodes - branch.nodes]
        return branch.nodes <= block.nodes and not any(n.kind in ("layer", "product", "norm") for n in rest)

    def _layers(self, nodes: Set[int]) -> int:
        return sum(self.graph.nodes[n].kind == "layer" for n in nodes)

    def _read_from_outside(self, nodes: Set[int]) -> frozenset[int]:
        return frozenset(e.node for n in nodes for e in self.graph.nodes[n].inputs if e.node not in nodes)

    @cached_property
    def _head(self) -> frozenset[int]:
        return head_layers(self.graph)
