"""Activations between two linears; without the activation, the linears merge into one (d x 4d x d becomes d x d)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from torch import nn

from prunerecover.graph.computation_graph import ComputationGraph, Node
from prunerecover.graph.regions import find_attentions, head_layers
from prunerecover.model.linears import check_plain, linear_shape
from prunerecover.model.paths import get_module


@dataclass(frozen=True)
class LinearPair:
    """An activation and the linears around it.

    Attributes:
        activation: Path of the activation.
        first: Path of the linear before the activation.
        between: Paths of modules between the linears without effect in evaluation mode, such as dropout.
        second: Path of the linear behind the activation.
    """

    activation: str
    first: str
    between: tuple[str, ...]
    second: str


def find_linear_pairs(model: nn.Module, graph: ComputationGraph) -> dict[str, LinearPair]:
    """Return the removable activations, by path, in order of execution.

    Each activation is a module called once, the only reader of an `nn.Linear`, and read by a single further
    `nn.Linear`; the merged linear has fewer parameters than the two. Activations in attentions and in the head stay.

    Args:
        model: Network of the graph.
        graph: Computation graph of a forward pass.
    """
    kept = head_layers(graph) | {i for attention in find_attentions(graph) for i in attention.layers}
    owners = Counter(p for module in model.modules() for p in module.parameters(recurse=False))
    found = {}
    for node in graph.of_kind("activation"):
        chain = _chain(graph, node)
        if chain is None or chain[0].index in kept or chain[-1].index in kept:
            continue
        first, *inside, second = chain
        pair = (get_module(model, first.module), get_module(model, second.module))
        if _can_merge(first.module, pair[0], owners) and _can_merge(second.module, pair[1], owners) and _smaller(*pair):
            between = tuple(other.module for other in inside if other.index != node.index)
            found[node.module] = LinearPair(node.module, first.module, between, second.module)
    return found


def _chain(graph: ComputationGraph, activation: Node) -> list[Node] | None:
    """Return the nodes from the layer before an activation to the layer behind; None if the way has branches."""
    before, behind = [activation], [activation]
    while before[-1].kind != "layer":
        if len(before[-1].inputs) != 1:
            return None
        before.append(graph.nodes[before[-1].inputs[0].node])
        if len(graph.readers[before[-1].index]) != 1 or before[-1].kind not in ("layer", "identity"):
            return None
    while behind[-1].kind != "layer":
        readers = graph.readers[behind[-1].index]
        if len(readers) != 1 or graph.nodes[readers[0]].kind not in ("layer", "identity"):
            return None
        behind.append(graph.nodes[readers[0]])
    chain = [*reversed(before[1:]), *behind]
    alone = all(node.whole and graph.times[node.module] == 1 for node in chain)
    return chain if alone else None


def _can_merge(path: str, linear: nn.Module, owners: Counter[nn.Parameter]) -> bool:
    """Whether a module is a linear without shared weights."""
    try:
        check_plain(path, linear)
    except ValueError:
        return False
    return type(linear) is nn.Linear and all(owners[parameter] == 1 for parameter in linear.parameters())


def _smaller(first: nn.Module, second: nn.Module) -> bool:
    merged = linear_shape(second)[1] * (linear_shape(first)[0] + 1)
    return merged < sum(p.numel() for linear in (first, second) for p in linear.parameters())
