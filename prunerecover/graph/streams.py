"""Streams: what branches are added to, and where they branch off."""

from __future__ import annotations

from collections.abc import Sequence

from prunerecover.graph.computation_graph import ComputationGraph, Edge, Node

MOST_ADDENDS = 8  # of one stream that are looked at


def branches_off(graph: ComputationGraph, streams: Sequence[int], branch: Edge) -> int | None:
    """Return the first of some nodes that a branch depends on and is not."""
    ancestors = graph.ancestors[branch.node]
    return next((node for node in streams if node != branch.node and ancestors >> node & 1), None)


def addends(graph: ComputationGraph, stream: Edge) -> list[int]:
    """What a stream is a sum of, the sum itself first: parallel branches all branch off before the first sum."""
    found = [beyond_identities(graph, stream)]
    for index in found:
        node = graph.nodes[index]
        if node.kind == "merge" and node.operation == "add" and len(node.inputs) == 2 and len(found) < MOST_ADDENDS:
            found += [beyond_identities(graph, edge) for edge in node.inputs]
    return found


def streams_behind(graph: ComputationGraph, merge: Node) -> list[int]:
    """Return what a sum of branches is added to in the end, where nothing else reads it."""
    node = merge
    while len(readers := graph.readers[node.index]) == 1:
        before, node = node, graph.nodes[readers[0]]
        if node.kind == "merge" and node.operation == "add" and len(node.inputs) == 2:
            (other,) = [edge for edge in node.inputs if edge.node != before.index] or [node.inputs[0]]
            return [*addends(graph, other), *streams_behind(graph, node)]
        if node.kind != "identity":
            break
    return []


def beyond_identities(graph: ComputationGraph, edge: Edge) -> int:
    """Return the node whose output an edge carries, beyond identities."""
    index = edge.node
    while graph.nodes[index].kind == "identity":
        index = graph.nodes[index].inputs[0].node
    return index
