"""Regions of the computation graph, known by structure alone: attentions, and the head that makes the outputs."""

from __future__ import annotations

from dataclasses import dataclass
from os.path import commonprefix

from prunerecover.graph.computation_graph import ComputationGraph, Node
from prunerecover.model.paths import is_within

MOST_LAYERS = 12  # of one attention; a module that multiplies activations and holds more is something larger
HEAD_SHARE = 0.5  # of all layers; what holds more of them is no head


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
    """The layers that a product's operands come from."""
    return [n for n in graph.behind(product, lambda n: n.kind in ("layer", "product")) if n.kind == "layer"]


def _projections(graph: ComputationGraph, product: Node) -> list[Node]:
    """The layers that read what a product leaves, before it is added to anything."""
    return [n for n in graph.ahead(product, lambda n: n.kind in ("layer", "merge", "product")) if n.kind == "layer"]


def head_layers(graph: ComputationGraph) -> frozenset[int]:
    """Return the indices of the layers in the head: those in the smallest module that holds all last layers.

    The last layers are those behind which no other layer comes. Outputs besides, such as the features that detectors
    return with their boxes, do not count: other layers read them. Where that module holds most layers, or is the model
    itself, the head is the last layers alone.
    """
    layers = graph.of_kind("layer")
    last = [n for n in layers if not any(m.kind == "layer" for m in graph.ahead(n, lambda m: m.kind == "layer"))]
    module = common_module([node.module for node in last])
    held = {node.index for node in layers if is_within(node.module, module)}
    return frozenset(held if len(held) <= HEAD_SHARE * len(layers) else {node.index for node in last})


def common_module(paths: list[str]) -> str:
    """Return the smallest module that holds all paths.

    >>> common_module(["model.24.m.0", "model.24.m.1"])
    'model.24.m'
    """
    return ".".join(commonprefix([path.split(".") for path in paths])) if paths else ""
