"""What goes with a layer: its norm and activation, where they serve it alone."""

from __future__ import annotations

from collections.abc import Set

from prunerecover.graph.computation_graph import ComputationGraph, Node

BARRIERS = ("layer", "merge", "product", "output")


def coupled_nodes(graph: ComputationGraph, layer: Node, gone: Set[int]) -> tuple[Node, ...]:
    """Return the activations and norms that go with a layer.

    Behind the layer: the norm of its output (BatchNorm after a convolution is part of the same linear map, and knows
    the statistics of no other), and the activations that are reached without crossing another layer or a merge. In
    front of it: a norm that nothing else reads.

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
    for norm in graph.behind(layer, lambda n: barrier(n) or n.kind == "norm"):
        if norm.kind != "norm" or norm.index in gone or _made_by_layer(graph, norm, gone):
            continue
        reached = [n for n in graph.ahead(norm, barrier) if barrier(n)]
        if all(n.index == layer.index for n in reached):
            found.append(norm)
    return tuple(sorted(found, key=lambda n: n.index))


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
