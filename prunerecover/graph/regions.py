"""Regions of the computation graph, found by structure alone: attentions, the head of the network, streams."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod
from operator import or_
from os.path import commonprefix

from prunerecover.graph.computation_graph import ComputationGraph, Edge, Node
from prunerecover.model.paths import is_within, parent_path

MOST_LAYERS = 12  # most layers of an attention; with more, a module is a larger part
MOST_ADDENDS = 8  # most addends of a stream
BRANCH_SHARE = 0.5  # largest share of all layers in a branch of the head


@dataclass(frozen=True)
class Attention:
    """Products of activations with activations in the code of a module, and the layers around the products.

    Attributes:
        module: Path of the module.
        layers: Indices of the layers for queries, keys and values, of the layer behind the result, and of all further
            layers inside the module.
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
    """The layers behind a product's operands; none if the product makes the operands, as in nn.MultiheadAttention."""
    if product.whole and product.weighed:
        return []
    return [n for n in graph.behind(product, lambda n: n.kind in ("layer", "product")) if n.kind == "layer"]


def _projections(graph: ComputationGraph, product: Node) -> list[Node]:
    """The layers that read a product's result, before any addition."""
    return [n for n in graph.ahead(product, lambda n: n.kind in ("layer", "join", "product")) if n.kind == "layer"]


def head_layers(graph: ComputationGraph) -> frozenset[int]:
    """Return the indices of the head's layers: the last layers, without a later layer, and their branches.

    A network may have several last layers, for example for boxes and for classes. The branch of a last layer computes
    for the layer alone, from the point where the ways to the last layers part. A layer added to the stream by one of
    several alike blocks makes no output of its own: the stream is there without it. Modules built like a branch of
    several layers are in the head, too: heads of earlier stages, with boxes refined by later stages. Extra outputs, for
    example the features returned by detectors with the boxes, do not count: further layers read the features.
    """
    layers = graph.of_kind("layer")
    last = [n for n in layers if not any(m.kind == "layer" for m in graph.ahead(n, lambda m: m.kind == "layer"))]
    last = [n for n in last if not _is_added_by_a_block(graph, n)]
    branches = _branches(graph, [n for n in last if n.index in graph.reached_by_output])
    copies = [copy for branch in branches for copy in _copies(graph, branch)]
    return frozenset(n.index for part in (last, *branches, *copies) for n in part)


def _is_added_by_a_block(graph: ComputationGraph, layer: Node) -> bool:
    """Whether one of several numbered modules of constant shape adds a layer to the stream."""
    keeping = [n for n, call in enumerate(graph.calls) if call.path[-1:].isdigit() and call.given_shape == call.shape]
    lists = Counter((parent_path(graph.calls[n].path), graph.calls[n].shape) for n in keeping)
    blocks = [n for n in keeping if lists[parent_path(graph.calls[n].path), graph.calls[n].shape] > 1]
    around = [graph.inside[n] for n in blocks if layer.index in graph.inside[n]]
    sums = graph.ahead(layer, lambda node: node.kind in ("layer", "join", "product"))
    return any(node.operation == "add" and node.index in inside for node in sums for inside in around)


def _branches(graph: ComputationGraph, last: list[Node]) -> list[list[Node]]:
    """Return the layers that compute for a single last layer alone, including the last layer.

    A tower, without layers shared among the last layers, is no branch. Nor is a trunk beyond an early output: a trunk
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
    sums = node.kind == "join" and node.operation != "cat"
    return sums or node.kind == "product" or (node.is_convolution and after < before)


def _copies(graph: ComputationGraph, branch: list[Node]) -> list[list[Node]]:
    """Return the layers of the modules with the same layout as a branch of several layers."""
    if len(branch) < 2:
        return []
    called = list(dict.fromkeys(call.path for call in graph.calls))
    holding = [path for path in called if all(is_within(node.module, path) for node in branch)]
    inside = {path: [n for n in graph.of_kind("layer") if is_within(n.module, path)] for path in called}
    wanted = [_layout(branch, path) for path in holding if inside[path] == branch]
    return [layers for path, layers in inside.items() if _layout(layers, path) in wanted]


def _layout(layers: list[Node], module: str) -> list[tuple[str, str, int, int]]:
    """Return names, operations and numbers of channels, before and after, of the layers in a module."""
    return [(n.module.removeprefix(module), n.operation, n.given[n.channels], n.shape[n.channels]) for n in layers]


def common_module(paths: list[str]) -> str:
    """Return the smallest module that holds all paths.

    >>> common_module(["model.24.m.0", "model.24.m.1"])
    'model.24.m'
    """
    return ".".join(commonprefix([path.split(".") for path in paths])) if paths else ""


def branches_off(graph: ComputationGraph, streams: Sequence[int], branch: Edge) -> int | None:
    """Return the first of the `streams` that a branch depends on, without the branch itself."""
    ancestors = graph.ancestors[branch.node]
    return next((node for node in streams if node != branch.node and ancestors >> node & 1), None)


def addends(graph: ComputationGraph, stream: Edge) -> list[int]:
    """Addends of a stream, the sum itself first: parallel branches all branch off before the first sum."""
    found = [beyond_identities(graph, stream)]
    for index in found:
        node = graph.nodes[index]
        if node.kind == "join" and node.operation == "add" and len(node.inputs) == 2 and len(found) < MOST_ADDENDS:
            found += [beyond_identities(graph, edge) for edge in node.inputs]
    return found


def streams_behind(graph: ComputationGraph, join: Node) -> list[int]:
    """Return the stream that finally takes a sum of branches, where the sum has no further reader."""
    node = join
    while len(readers := graph.readers[node.index]) == 1:
        before, node = node, graph.nodes[readers[0]]
        if node.kind == "join" and node.operation == "add" and len(node.inputs) == 2:
            (other,) = [edge for edge in node.inputs if edge.node != before.index] or [node.inputs[0]]
            return [*addends(graph, other), *streams_behind(graph, node)]
        if node.kind != "identity":
            break
    return []


def beyond_identities(graph: ComputationGraph, edge: Edge) -> int:
    """Return the node at the start of an edge, beyond identities."""
    index = edge.node
    while graph.nodes[index].kind == "identity":
        index = graph.nodes[index].inputs[0].node
    return index


def follows_scale(graph: ComputationGraph, number: int, calls: Sequence[int]) -> bool:
    """Whether a call only passes on its input, and a parameter of the block scales the input.

    The scales of XCiT, CaiT and BEiT, before the drop path, stay and train on the output of a replacement.

    Args:
        graph: Computation graph.
        number: Number of the call.
        calls: Numbers of the calls of the branch.
    """
    entered = graph.entered[number]
    if entered is None or any(graph.nodes[n].kind != "identity" for n in graph.inside[number]):
        return False
    return bool(graph.nodes[entered.node].weights) and not any(entered.node in graph.inside[c] for c in calls)
