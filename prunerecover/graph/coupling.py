"""Companions of a layer: its norm and activation go with it, where they serve it alone, as modules or as calls."""

from __future__ import annotations

from collections.abc import Sequence, Set

from torch import nn

from prunerecover.graph.computation_graph import ComputationGraph, Edge, Node
from prunerecover.model.paths import get_module

BARRIERS = ("layer", "merge", "product", "output")
PATCHED = ("add", "mul")  # of one tensor with itself: see `prunerecover.depth.layers.patching`


def coupled_nodes(graph: ComputationGraph, layer: Node, gone: Set[int]) -> tuple[Node, ...]:
    """Return the activations and norms that go with a layer.

    Behind the layer: the norm of its output (BatchNorm after a convolution is part of the same linear map, and knows
    the statistics of no other), and the activations that are reached without crossing another layer or a merge. In
    front of it: a norm that nothing else reads, or only a sum with the stream that it norms, once all layers of its
    branch are gone.

    The source, a thesis on fine-grained depth pruning (Delft 2025), takes the norm in front alone, and also one that a
    sum reads besides, as in post-norm transformers. There the residual stream would lose its norm.

    Args:
        graph: Of the dense network.
        layer: That goes.
        gone: Indices of the nodes that went before: they hand on what they read.
    """

    def barrier(node: Node) -> bool:
        return node.kind in BARRIERS and node.index not in gone

    behind = [n for n in graph.ahead(layer, barrier) if n.index not in gone]
    found = [n for n in behind if n.kind == "activation" or (n.kind == "norm" and _follows(graph, n, layer, gone))]
    passing = gone | {layer.index, *(node.index for node in found)}
    passing |= _of_one(graph, passing)

    def stop(node: Node) -> bool:
        return node.kind in BARRIERS and (node.index == layer.index or node.index not in passing)

    for norm in graph.behind(layer, lambda n: stop(n) or n.kind == "norm"):
        if norm.kind != "norm" or norm.index in gone or _made_by_layer(graph, norm, gone):
            continue
        reached = [node for node in graph.ahead(norm, stop) if stop(node) and node.index != layer.index]
        if all(_rejoins(graph, node, norm, passing) for node in reached):
            found.append(norm)
    return tuple(sorted(found, key=lambda n: n.index))


def _of_one(graph: ComputationGraph, passing: Set[int]) -> frozenset[int]:
    """Return the sums and products of one tensor with itself: patches make them hand it on."""
    found: set[int] = set()
    for node in graph.of_kind("merge"):
        if node.operation in PATCHED and len({_origin(graph, edge, passing | found)[0] for edge in node.inputs}) == 1:
            found.add(node.index)
    return frozenset(found)


def _rejoins(graph: ComputationGraph, merge: Node, norm: Node, passing: Set[int]) -> bool:
    """Whether a sum would be one of a stream with itself without a norm, as behind a branch in which all else is gone.

    The norm of the stream itself, on all ways into the sum, is none.
    """
    if merge.operation not in PATCHED:
        return False
    ways = [_origin(graph, edge, passing | {norm.index}) for edge in merge.inputs]
    through = [norm.index in way for _, way in ways]
    return len({origin for origin, _ in ways}) == 1 and any(through) and not all(through)


def _origin(graph: ComputationGraph, edge: Edge, passing: Set[int]) -> tuple[Edge, frozenset[int]]:
    """Walk back over what hands on what it reads; return where that ends, and the nodes on the way."""
    way = set()
    while (node := graph.nodes[edge.node]).inputs and (node.index in passing or node.kind == "identity"):
        way.add(node.index)
        edge = node.inputs[0]
    return edge, frozenset(way)


def source_of(graph: ComputationGraph, node: Node, gone: Set[int]) -> Node:
    """Return the node whose output a node reads first, beyond identities and what is gone."""
    found = graph.nodes[node.inputs[0].node]
    while found.inputs and (found.index in gone or found.kind in ("identity", "movement")):
        found = graph.nodes[found.inputs[0].node]
    return found


def _follows(graph: ComputationGraph, norm: Node, layer: Node, gone: Set[int]) -> bool:
    return source_of(graph, norm, gone).index == layer.index


def _made_by_layer(graph: ComputationGraph, norm: Node, gone: Set[int]) -> bool:
    return source_of(graph, norm, gone).kind == "layer"


def whole_modules(graph: ComputationGraph, nodes: Sequence[Node]) -> tuple[tuple[str, ...], tuple[Node, ...]]:
    """Return the modules that some nodes are all of, and the nodes that are in none of them.

    Such as a norm, or a norm with the activation that it applies itself; identities inside, such as dropout, do not
    count. Modules that are called several times are none.
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
    """Return the module whose forward makes the call that a node is, and its name there; None: there is no telling.

    Args:
        model: That the graph was traced from.
        graph: Of one forward pass.
        node: A whole call of a module, or an operation in the code of one.

    Returns:
        A path, and a name as in `prunerecover.surgery.forward.calls`, such as "relu:1".
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
