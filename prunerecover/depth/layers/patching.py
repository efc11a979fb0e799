"""Patches behind removed layers: for joins of a tensor with itself, and for modules without remaining work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from types import MappingProxyType

from prunerecover.graph.branches import GraphUnit
from prunerecover.graph.computation_graph import ComputationGraph, Edge, Node
from prunerecover.model.paths import is_within
from prunerecover.plan.edit_parts import StandIn


@dataclass(frozen=True)
class Dropped:
    """Branches removed as a whole.

    Attributes:
        nodes: Indices of all nodes of the branches.
        streams: Number of the operand that stays, by index of the sum at the end of a branch.
    """

    nodes: frozenset[int] = frozenset()
    streams: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: ComputationGraph, units: Sequence[GraphUnit]) -> Dropped:
        """Collect the branches of units of the graph; blocks hand on their input."""
        nodes = frozenset(index for unit in units for index in unit.nodes)
        streams = {
            node.index: next(i for i, edge in enumerate(node.inputs) if edge.node not in unit.nodes)
            for unit in units
            if unit.kind != "block"
            for node in graph.of_kind("join")
            if node.index not in unit.nodes and any(edge.node in unit.nodes for edge in node.inputs)
        }
        return cls(nodes, streams)


NOTHING_DROPPED = Dropped()
NEUTRAL = {"add": "zero", "sub": "zero", "mul": "one", "cat": "empty"}


def patches(
    graph: ComputationGraph,
    gone: Set[int],
    dropped: Dropped = NOTHING_DROPPED,
    drop_copies: Callable[[Node, int], bool] = lambda join, stays: False,
    pooled: Mapping[int, StandIn] = MappingProxyType({}),
) -> dict[str, StandIn]:
    """Return the stand-ins that make joins of identity paths neutral, by path of the replaced module.

    Args:
        graph: Graph of the dense network.
        gone: Indices of the nodes that hand on their input.
        dropped: Branches removed as a whole.
        drop_copies: Function that leaves a single operand of a concatenation, by number, and returns whether all
            readers can do without the further operands.
        pooled: Poolings in the place of strided layers, by node; poolings do not hand on their input.
    """
    passing = set(gone) | dropped.streams.keys()
    ends: dict[int, StandIn] = {}
    for node in graph.nodes:
        covered = node.index in dropped.nodes or node.index in dropped.streams
        if node.kind == "join" and node.operation in NEUTRAL and len(node.inputs) > 1 and not covered:
            found = _patched(graph, node, passing, dropped, drop_copies)
            if found is not None:
                ends |= found
                passing.add(node.index)
    return _largest_modules(graph, passing | dropped.nodes, ends, pooled)


def _patched(
    graph: ComputationGraph,
    join: Node,
    passing: Set[int],
    dropped: Dropped,
    drop_copies: Callable[[Node, int], bool],
) -> dict[int, StandIn] | None:
    """Return the stand-in of the last removed module on each path but the staying path; None: no patch."""
    paths = [_path(graph, edge, passing, dropped) for edge in join.inputs]
    origins = {origin for origin, _ in paths}
    if len(origins) > 1:
        return None
    exits = [_exit(graph, join, path) for _, path in paths]
    stays = next((i for i, node in enumerate(exits) if node is None), 0)
    if join.operation == "sub" and stays != 0:
        return None
    others = [node for i, node in enumerate(exits) if i != stays]
    if any(node is None for node in others):
        return None
    found = {}
    for i, node in enumerate(exits):
        if node is not None and i != stays:
            leaves = NEUTRAL[join.operation]
            if join.in_place and i == 0:
                leaves = "zeros" if leaves == "zero" else "identity"
            if leaves == "identity":
                return None
            dim = next((d for d, (a, b) in enumerate(zip(node.shape, join.shape, strict=False)) if a != b), 0)
            found[node.index] = StandIn(leaves=leaves, dim=dim if leaves == "empty" else 0)  # type: ignore[arg-type]
    return found if join.operation != "cat" or drop_copies(join, stays) else None


def _path(graph: ComputationGraph, edge: Edge, passing: Set[int], dropped: Dropped) -> tuple[Edge, list[Node]]:
    """Walk back over nodes that hand on their input; return the last edge, and the nodes passed, last first."""
    path = []
    node = graph.nodes[edge.node]
    while node.inputs and (node.index in passing or node.kind == "identity"):
        path.append(node)
        edge = node.inputs[dropped.streams.get(node.index, 0)]
        node = graph.nodes[edge.node]
    return edge, path


def _exit(graph: ComputationGraph, join: Node, path: Sequence[Node]) -> Node | None:
    """Return the last module on a path with an output read by the join alone in the end."""
    reader = join.index
    for node in path:
        if set(graph.readers[node.index]) != {reader}:
            return None
        if node.whole and len(graph.by_module[node.module]) == 1:
            return node
        reader = node.index
    return None


def _largest_modules(
    graph: ComputationGraph, passing: Set[int], ends: dict[int, StandIn], pooled: Mapping[int, StandIn]
) -> dict[str, StandIn]:
    """Let stand-ins take whole modules without remaining work, instead of parts of the modules.

    Args:
        graph: Graph of the dense network.
        passing: Nodes that hand on their input.
        ends: Stand-ins of single nodes.
        pooled: Poolings by node; a module with nothing left but a pooling becomes the pooling.
    """
    found: dict[str, StandIn] = {}
    for call, inside, entered in zip(graph.calls, graph.inside, graph.entered, strict=True):
        covered = any(call.path.startswith(f"{path}.") for path in found)
        if not call.path or covered or graph.times[call.path] > 1 or not call.children or call.returns < 0:
            continue
        pools = [pooled[index] for index in inside if index in pooled]
        ends_in_pool = bool(pools) and max(inside, default=0) in ends
        if not inside or len(pools) > 1 or ends_in_pool:
            continue
        if not _hands_on(graph, sorted(inside), passing | pooled.keys(), entered):
            continue
        if graph.reader_of_parts(call.path) is not None:
            continue  # a stand-in has no parts that other code could read
        if pools:
            found[call.path] = pools[0].model_copy(update={"returns": call.returns})
            continue
        last = graph.nodes[max(inside)]
        leaves = StandIn(leaves="copy") if graph.is_overwritten(last, passing) else StandIn()
        found[call.path] = ends.get(last.index, leaves).model_copy(update={"returns": call.returns})
    for index, stand_in in ends.items():
        path = graph.nodes[index].module
        if not any(is_within(path, own) for own in found):
            found[path] = stand_in
    return found


def _hands_on(graph: ComputationGraph, inside: Sequence[int], passing: Set[int], given: Edge | None) -> bool:
    """Whether nodes only hand on the tensor given to their module, and only the last node is read elsewhere.

    A stand-in hands on its first tensor; a module may read another tensor.
    """
    nodes, own = [graph.nodes[index] for index in inside], set(inside)
    entered = {edge for node in nodes for edge in node.inputs if edge.node not in own}
    nothing_done = all(node.index in passing or node.kind == "identity" for node in nodes)
    return nothing_done and entered == {given} and all(own.issuperset(graph.readers[n.index]) for n in nodes[:-1])
