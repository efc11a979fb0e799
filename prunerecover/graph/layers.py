"""Layers for removal: linears and convolutions outside attentions and the head; reasons for the refused layers."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from prunerecover.graph.computation_graph import ComputationGraph, Node
from prunerecover.graph.regions import find_attentions, head_layers
from prunerecover.model.checks import computed_weights
from prunerecover.model.linears import check_plain
from prunerecover.model.paths import get_module, parent_path


@dataclass(frozen=True)
class LayerList:
    """The layers of a network.

    Attributes:
        offered: Paths of the removable layers, in order of execution.
        refused: Reasons of the refused layers, by path.
    """

    offered: tuple[str, ...]
    refused: dict[str, str]


def list_layers(model: nn.Module, graph: ComputationGraph, *, include_strided: bool = False) -> LayerList:
    """Split the layers into removable and refused.

    Args:
        model: Network of the graph.
        graph: Computation graph of a forward pass.
        include_strided: Whether to offer layers that change spatial dimensions: a pooling replaces them.
    """
    attention = {i: a.module for a in find_attentions(graph) for i in a.layers}
    head = head_layers(graph)
    offered: list[str] = []
    refused: dict[str, str] = {}
    for node in graph.of_kind("layer"):
        reason = _why_not(model, graph, node, attention, head)
        if not reason and is_resizing(node) and not include_strided:
            reason = "it changes spatial dimensions; pass include_strided=True"
        if reason:
            refused[graph.name(node)] = reason
        else:
            offered.append(node.module)
    return LayerList(tuple(offered), refused | _never_called(model, graph))


def _why_not(
    model: nn.Module, graph: ComputationGraph, node: Node, attention: dict[int, str], head: frozenset[int]
) -> str:
    module = get_module(model, node.module)
    if node.index in attention:
        return f"it is part of the attention '{attention[node.index]}'; remove that, or narrow its heads"
    if node.index in head:
        return "it is in the head, which makes the outputs; narrow its input"
    if computed := computed_weights(module):
        return f"its {computed[0].name} is computed by {computed[0].how}; {computed[0].way_out}"
    if not node.whole:
        return f"its weight is used in the code of {type(module).__name__}, not by a layer of its own; make it one"
    if len(graph.by_module[node.module]) > 1:
        return "it is called several times; give each call its own, or narrow it"
    if isinstance(module, _ConvTransposeNd):
        return "it is a transposed convolution; narrow its channels"
    if isinstance(module, _ConvNd) and module.groups > 1 and module.in_channels != module.out_channels:
        return "it is grouped, and makes another number of channels than it reads; narrow these"
    if not is_layer(module):
        return f"{type(module).__name__} is no linear or convolution; narrow its output"
    if node.index not in graph.reached_by_output:
        return "the output does not depend on it; delete it from the code"
    if graph.hooked_in(node.module):
        return "a hook that the network puts on it while it runs hands on its output; collect fewer outputs"
    try:
        check_plain(node.module, module)
    except ValueError as error:
        return f"its weight is computed; {error}"
    return ""


def is_layer(module: nn.Module) -> bool:
    """Whether a module is a linear, a convolution, or transformers' `Conv1D`."""
    return isinstance(module, nn.Linear | _ConvNd) or type(module).__name__ == "Conv1D"


def is_resizing(node: Node) -> bool:
    """Whether input and output of a layer differ in more than the channels."""
    if len(node.given) != len(node.shape):
        return True
    channels = range(len(node.shape))[node.channels]
    return any(a != b for d, (a, b) in enumerate(zip(node.given, node.shape, strict=True)) if d != channels)


def _never_called(model: nn.Module, graph: ComputationGraph) -> dict[str, str]:
    """Layers beyond the reach of the example: a head for training alone, or a branch not taken."""
    called = {node.module for node in graph.nodes} | {call.path for call in graph.calls}
    called |= {parent_path(weight) for node in graph.nodes for weight in node.weights}
    inside = {path for path, module in model.named_modules() if is_layer(module) and path not in called}
    return dict.fromkeys(sorted(inside), "the example does not call it; pass a batch that reaches it")
