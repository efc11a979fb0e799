"""Regions of the computation graph, known by structure alone: attentions, the head that makes the outputs, streams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod
from operator import or_
from os.path import commonprefix

from prunerecover.graph.computation_graph import ComputationGraph, Edge, Node
from prunerecover.model.paths import is_within

MOST_LAYERS = 12  # of one attention; a module that multiplies activations and holds more is something larger
MOST_ADDENDS = 8  # of one stream that are looked at
BRANCH_SHARE = 0.5  # of all layers; what holds more of them is no branch of the head


@dataclass(frozen=True)
class Attention:
    """Products of activations with activations in the code of one module, and the layers that serve them.

    Attributes:
        module: Path of the module.
        layers: Indices of the layers that make queries, keys and values, of the one that reads what comes out, and of
            all others inside the module.
        products: Indices of the products.
    """

    module: str
    layers: frozenset[int]
    products: frozenset[int]


def find_attentions(graph: ComputationGraph) -> tuple[Attention, ...]:
    """List the attentions, in order of execution."""
    by_call: dict[int, list[Node]] = {}
    for node in graph.of_kind("product"):
        by_call.setdefault(node.call, []).append(node)
    found = []
    for products in by_call.values():
        module = products[0].module
        serving = {n.index for product in products for n in _sources(graph, product)}
        serving |= {n.index for product in products for n in _projections(graph, product)}
        inside = {n.index for n in graph.of_kind("layer") if module and is_within(n.module, module)}
        layers = serving | (inside if len(inside) <= MOST_LAYERS else set())
        found.append(Attention(module, frozenset(layers), frozenset(p.index for p in products)))
    return tuple(found)


def _sources(graph: ComputationGraph, product: Node) -> list[Node]:
    """The layers that a product's operands come from; none if it makes them itself, as nn.MultiheadAttention does."""
    if product.whole and product.weighed:
        return []
    return [n for n in graph.behind(product, lambda n: n.kind in ("layer", "product")) if n.kind == "layer"]


def _projections(graph: ComputationGraph, product: Node) -> list[Node]:
    """The layers that read what a product leaves, before it is added to anything."""
    return [n for n in graph.ahead(product, lambda n: n.kind in ("layer", "merge", "product")) if n.kind == "layer"]


def head_layers(graph: ComputationGraph) -> frozenset[int]:
    """Return the indices of the layers in the head: the last ones, behind which no other comes, and their branches.

    Where a network has several last layers, such as for boxes and for classes, the branch of one is what computes for
    it alone, from where it parts from what the others read, too. Modules built as a branch of several layers is, such
    as the heads of earlier stages whose boxes later ones refine, are in the head with it. Outputs besides, such as the
    features that detectors return with their boxes, do not count: other layers read them.
    """
    layers = graph.of_kind("layer")
    last = [n for n in layers if not any(m.kind == "layer" for m in graph.ahead(n, lambda m: m.kind == "layer"))]
    branches = _branches(graph, [n for n in last if n.index in graph.reached_by_output])
    copies = [copy for branch in branches for copy in _copies(graph, branch)]
    return frozenset(n.index for part in (last, *branches, *copies) for n in part)


def _branches(graph: ComputationGraph, last: list[Node]) -> list[list[Node]]:
    """Return the layers that compute for one last layer alone, with that layer.

    A tower, which shares no layer with the others, is no branch. Nor is a trunk that goes on behind an early output: it
    adds or multiplies activations, makes maps smaller, or holds most layers.
    """
    layers = graph.of_kind("layer")
    found = []
    for node in last:
        others = reduce(or_, (graph.ancestors[n.index] for n in last if n is not node), 0)
        own = [n for n in graph.nodes if graph.ancestors[node.index] >> n.index & 1]
        alone = [n for n in own if not others >> n.index & 1]
        branch = [n for n in alone if n.kind == "layer"]
        is_tower = len(branch) == sum(n.kind == "layer" for n in own)
        if not is_tower and not any(map(_is_of_a_trunk, alone)) and len(branch) <= BRANCH_SHARE * len(layers):
            found.append(branch)
    return found


def _is_of_a_trunk(node: Node) -> bool:
    before, after = (prod(shape[2:]) for shape in (node.given, node.shape))
    sums = node.kind == "merge" and node.operation != "cat"
    return sums or node.kind == "product" or (_is_convolution(node) and after < before)


def _copies(graph: ComputationGraph, branch: list[Node]) -> list[list[Node]]:
    """Return the layers of the modules that are built as a branch of several layers is."""
    if len(branch) < 2:
        return []
    called = list(dict.fromkeys(call.path for call in graph.calls))
    holding = [path for path in called if all(is_within(node.module, path) for node in branch)]
    inside = {path: [n for n in graph.of_kind("layer") if is_within(n.module, path)] for path in called}
    wanted = [_layout(branch, path) for path in holding if inside[path] == branch]
    return [layers for path, layers in inside.items() if _layout(layers, path) in wanted]


def _layout(layers: list[Node], module: str) -> list[tuple[str, str, int, int]]:
    """Return names, operations and numbers of channels, before and after, of the layers in a module."""
    return [(n.module.removeprefix(module), n.operation, *_channels(n)) for n in layers]


def _channels(layer: Node) -> tuple[int, int]:
    dim = 1 if _is_convolution(layer) else -1
    return layer.given[dim], layer.shape[dim]


def _is_convolution(node: Node) -> bool:
    return node.operation in ("convolution", "_convolution")


def common_module(paths: list[str]) -> str:
    """Return the smallest module that holds all paths.

    >>> common_module(["model.24.m.0", "model.24.m.1"])
    'model.24.m'
    """
    return ".".join(commonprefix([path.split(".") for path in paths])) if paths else ""


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
