"""Patch what identities leave: merges of one tensor with itself, and modules in which nothing is left to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from types import MappingProxyType

from prunerecover.graph.branches import GraphUnit
from prunerecover.graph.computation_graph import ComputationGraph, Edge, Node
from prunerecover.plan.edits import StandIn

@dataclass(frozen=True)
class Dropped:
    """Branches that are taken out whole.

    Attributes:
        nodes: Indices of all their nodes.
        streams: By index of a sum that a branch is added in, which operand stays.
    """

    nodes: frozenset[int] = frozenset()
    streams: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: ComputationGraph, units: Sequence[GraphUnit]) -> Dropped:
        """Collect them from units of the graph; blocks hand on their input."""
        nodes = frozenset(index for unit in units for index in unit.nodes)
        streams = {
            node.index: next(i for i, edge in enumerate(node.inputs) if edge.node not in unit.nodes)
            for unit in units
            if unit.kind != "block"
            for node in graph.of_kind("merge")
            if node.index not in unit.nodes and any(edge.node in unit.nodes for edge in node.inputs)
        }
        return cls(nodes, streams)


NEUTRAL = {"add": "zero", "sub": "zero", "mul": "one", "cat": "empty"}


def patches(
    graph: ComputationGraph,
    gone: Set[int],
    dropped: Dropped = Dropped(),
    standing: Mapping[int, StandIn] = MappingProxyType({}),
) -> dict[str, StandIn]:
    """Return the stand-ins that make merges of identity paths neutral, by path of the module that each takes.

    Args:
        graph: Of the dense network.
        gone: Indices of the nodes that are out.
        dropped: Branches that are taken out whole.
        standing: By node that is out, what was left there if it is no identity: a pooling, or a copy.
    """
    pooled = {index for index, own in standing.items() if own.leaves == "pool"}
    passing = (set(gone) - pooled) | dropped.streams.keys()
    ends: dict[int, StandIn] = {}
    for node in graph.nodes:
        covered = node.index in dropped.nodes or node.index in dropped.streams
        if node.kind == "merge" and node.operation in NEUTRAL and len(node.inputs) > 1 and not covered:
            found = _patched(graph, node, passing, dropped)
            if found is not None:
                ends |= found
                passing.add(node.index)
    return _largest_modules(graph, passing | dropped.nodes, ends, standing)


def _patched(graph: ComputationGraph, merge: Node, passing: Set[int], dropped: Dropped) -> dict[int, StandIn] | None:
    """Return, by node, what the last removed module on each path but one leaves; None: the merge stays."""
    paths = [_path(graph, edge, passing, dropped) for edge in merge.inputs]
    origins = {origin for origin, _ in paths}
    if len(origins) > 1:
        return None
    exits = [_exit(graph, merge, path) for _, path in paths]
    stays = next((i for i, node in enumerate(exits) if node is None), 0)
    if merge.operation == "sub" and stays != 0:
        return None
    others = [node for i, node in enumerate(exits) if i != stays]
    if any(node is None for node in others):
        return None
    found = {}
    for i, node in enumerate(exits):
        if node is not None and i != stays:
            leaves = NEUTRAL[merge.operation]
            if merge.in_place and i == 0:
                leaves = "zeros" if leaves == "zero" else "identity"
            if leaves == "identity":
                return None
            dim = next((d for d, (a, b) in enumerate(zip(node.shape, merge.shape, strict=False)) if a != b), 0)
            found[node.index] = StandIn(leaves=leaves, dim=dim if leaves == "empty" else 0)  # type: ignore[arg-type]
    return found


def _path(graph: ComputationGraph, edge: Edge, passing: Set[int], dropped: Dropped) -> tuple[Edge, list[Node]]:
    """Walk back over what hands on what it reads; return where that ends, and the nodes on the way, last first."""
    path = []
    node = graph.nodes[edge.node]
    while node.inputs and (node.index in passing or node.kind == "identity"):
        path.append(node)
        edge = node.inputs[dropped.streams.get(node.index, 0)]
        node = graph.nodes[edge.node]
    return edge, path


def _exit(graph: ComputationGraph, merge: Node, path: Sequence[Node]) -> Node | None:
    """Return the last module on a path whose output nothing but the merge reads in the end."""
    reader = merge.index
    for node in path:
        if set(graph.readers[node.index]) != {reader}:
            return None
        if node.whole and len(graph.by_module[node.module]) == 1:
            return node
        reader = node.index
    return None


def _largest_modules(
    graph: ComputationGraph, passing: Set[int], ends: dict[int, StandIn], standing: Mapping[int, StandIn]
) -> dict[str, StandIn]:
    """Let stand-ins take whole modules in which nothing, or only a pooling or a copy, is left to do.

    Such as a convolution with its norm and activation: code that looks into the module (ultralytics' `fuse`, which
    folds norms into convolutions) finds nothing there that it could take for a layer.

    Args:
        graph: Of the dense network.
        passing: Nodes that hand on what they read.
        ends: What single nodes leave instead.
        standing: See `patches`.
    """
    times: dict[str, int] = {}
    inside: dict[int, list[Node]] = {i: [] for i in range(len(graph.calls))}
    for i, call in enumerate(graph.calls):
        times[call.path] = times.get(call.path, 0) + 1
    for node in graph.nodes:
        number = node.call if node.kind not in ("input", "output") else -1
        while number >= 0:
            inside[number].append(node)
            number = graph.calls[number].parent
    found: dict[str, StandIn] = {}
    for i, call in enumerate(graph.calls):
        covered = any(call.path.startswith(f"{path}.") for path in found)
        if not call.path or covered or times[call.path] > 1 or not call.children or not call.returns:
            continue
        own = inside[i]
        left = [standing[node.index] for node in own if node.index in standing]
        pools = [stand_in for stand_in in left if stand_in.leaves == "pool"]
        done = all(n.index in passing or n.index in standing or n.kind == "identity" for n in own)
        if not own or not done or len(pools) > 1 or (pools and own[-1].index in ends):
            continue
        entered = {edge for node in own for edge in node.inputs if graph.nodes[edge.node] not in own}
        if len(entered) == 1 and all(set(graph.readers[n.index]) <= {m.index for m in own} for n in own[:-1]):
            stand_in = ends.get(own[-1].index, next(iter([*pools, *left]), StandIn()))
            found[call.path] = stand_in.model_copy(update={"returns": call.returns})
    for index, stand_in in ends.items():
        path = graph.nodes[index].module
        if not any(path == own or path.startswith(f"{own}.") for own in found):
            found[path] = stand_in
    return found
