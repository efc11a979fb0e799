"""Companions of a layer: the norm and activation that serve the layer alone, as modules or as calls."""

from __future__ import annotations

from collections.abc import Sequence, Set

from torch import nn

from prunerecover.graph.computation_graph import ComputationGraph, Edge, Node
from prunerecover.model.paths import get_module

BARRIERS = ("layer", "join", "product", "output")
PATCHED = ("add", "mul")  # operations on a tensor with itself: see `prunerecover.depth.layers.patching`


def coupled_nodes(graph: ComputationGraph, layer: Node, gone: Set[int]) -> tuple[Node, ...]:
    """Return the activations and norms to remove with a layer.

    Behind the layer: the norm of the layer's output (BatchNorm after a convolution is part of the same linear map, with
    statistics of the same output), and the activations reached without crossing another layer or a join. In front of
    the layer: a norm that only the layer reads, or only the layer and the sum with the norm's own stream, once all
    layers of the branch are removed.

    The source, a thesis on fine-grained depth pruning (Delft 2025), takes the norm in front alone, and also a norm that
    a sum reads besides, as in post-norm transformers. There the residual stream would lose its norm.

    Args:
        graph: Graph of the dense network.
        layer: Layer to remove.
        gone: Indices of the nodes removed before: removed nodes pass on the first input.
    """

    def barrier(node: Node) -> bool:
        return node.kind in BARRIERS and node.index not in gone

    behind = [n for n in graph.ahead(layer, barrier) if n.index not in gone]
    found = [n for n in behind if n.kind == "activation" or (n.kind == "norm" and source_of(graph, n, gone) == layer)]
    passing = gone | {layer.index, *(node.index for node in found)}
    passing |= _of_one(graph, passing)

    def stop(node: Node) -> bool:
        return node.kind in BARRIERS and (node.index == layer.index or node.index not in passing)

    for norm in graph.behind(layer, lambda n: stop(n) or n.kind == "norm"):
        if norm.kind != "norm" or norm.index in gone or source_of(graph, norm, gone).kind == "layer":
            continue
        reached = [node for node in graph.ahead(norm, stop) if stop(node) and node.index != layer.index]
        if all(_rejoins(graph, node, norm, passing) for node in reached):
            found.append(norm)
    return tuple(sorted(found, key=lambda n: n.index))


def _of_one(graph: ComputationGraph, passing: Set[int]) -> frozenset[int]:
    """Return the sums and products of a tensor with itself: patches pass on the tensor."""
    found: set[int] = set()
    for node in graph.of_kind("join"):
        if node.operation in PATCHED and len({_origin(graph, edge, passing | found)[0] for edge in node.inputs}) == 1:
            found.add(node.index)
    return frozenset(found)


def _rejoins(graph: ComputationGraph, join: Node, norm: Node, passing: Set[int]) -> bool:
    """Whether a sum, without a norm, would add a stream to itself, as behind a branch without remaining layers.

    A norm of the stream itself, on all ways into the sum, does not count.
    """
    if join.operation not in PATCHED:
        return False
    ways = [_origin(graph, edge, passing | {norm.index}) for edge in join.inputs]
    through = [norm.index in way for _, way in ways]
    return len({origin for origin, _ in ways}) == 1 and any(through) and not all(through)


def _origin(graph: ComputationGraph, edge: Edge, passing: Set[int]) -> tuple[Edge, frozenset[int]]:
    """Walk back over removed nodes and identities; return the end of the walk, and the nodes on the way."""
    way = set()
    while (node := graph.nodes[edge.node]).inputs and (node.index in passing or node.kind == "identity"):
        way.add(node.index)
        edge = node.inputs[0]
    return edge, frozenset(way)


def source_of(graph: ComputationGraph, node: Node, gone: Set[int]) -> Node:
    """Return the node at a node's first input, beyond identities and removed nodes."""
    found = graph.nodes[node.inputs[0].node]
    while found.inputs and (found.index in gone or found.kind in ("identity", "movement")):
        found = graph.nodes[found.inputs[0].node]
    return found


def whole_modules(graph: ComputationGraph, nodes: Sequence[Node]) -> tuple[tuple[str, ...], tuple[Node, ...]]:
    """Return the modules made of `nodes` alone, and the nodes outside the modules.

    Examples are a norm, or a norm with an activation of its own; identities inside (dropout) do not count. Modules with
    several calls are left out.
    """
    wanted, found = {node.index for node in nodes}, []
    covered: set[int] = set()
    for call, inside in zip(graph.calls, graph.inside, strict=True):
        own = inside & wanted
        rest = (graph.nodes[index] for index in inside - wanted)
        alone = call.path and graph.times[call.path] == 1 and call.returns == 1
        if own and alone and not own <= covered and all(node.kind == "identity" for node in rest):
            found.append(call.path)
            covered |= own
    return tuple(found), tuple(node for node in nodes if node.index not in covered)


def own_call(model: nn.Module, graph: ComputationGraph, node: Node) -> tuple[str, str] | None:
    """Return the module whose forward makes the call of a node, and the call's name there; None if unknown.

    Args:
        model: Network of the graph.
        graph: Computation graph of a forward pass.
        node: Whole call of a module, or operation in the code of a module.

    Returns:
        A path, and a name as in `prunerecover.surgery.forward.calls`, for example "relu:1".
    """
    caller = graph.calls[node.call].parent if node.whole else node.call
    if caller < 0 or graph.times[graph.calls[caller].path] > 1:
        return None
    path = graph.calls[caller].path
    if not node.whole:
        name = node.operation.strip("_")
        children = {child for child, _ in get_module(model, path).named_modules()}
        return path, f"{'aten.' if name in children else ''}{name}:{node.occurrence}"
    child = node.module.removeprefix(f"{path}.") if path else node.module
    siblings = [i for i in graph.calls[caller].children if graph.calls[i].path == node.module]
    return path, f"{child}:{siblings.index(node.call)}"
