"""Layers at the end of a branch: their output is added to a stream.

The output of such a layer, behind a BatchNorm if present, is one operand of a sum; the stream is the second. The
computation graph shows these layers. The sum is intercepted as a function of torch, so any forward will do, in place or
not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from prunerecover.calibration.front_to_back import FrontToBack
from prunerecover.graph.computation_graph import ComputationGraph, Node
from prunerecover.graph.trace import trace_graph
from prunerecover.model.batches import ModelInputs
from prunerecover.model.hooks import Reached, first_tensor, until_reached
from prunerecover.model.paths import get_module
from prunerecover.recovery.batchnorm import batchnorms

ADDITIONS = frozenset(
    getattr(owner, name)
    for owner, names in ((torch, ("add",)), (Tensor, ("add", "add_", "__add__", "__radd__", "__iadd__")))
    for name in names
)
PRODUCTS = frozenset((torch.mul, Tensor.mul, Tensor.mul_, Tensor.__mul__, Tensor.__rmul__, Tensor.__imul__))
NO_NORM = ""


def branch_ends(network: nn.Module, layers: Iterable[str], inputs: ModelInputs) -> dict[str, str]:
    """Return the layers at the end of a branch, with the path of the BatchNorm behind each, or `NO_NORM`.

    A layer is left out if a pass calls the layer several times, or if the output has a second reader (as at the
    beginning of a stream), is changed before the sum (as by an activation), or enters a BatchNorm with several calls in
    a pass. Only a plain affine BatchNorm over the outputs of the layer counts: none with an activation inside, and none
    over tokens.

    Args:
        network: Network in evaluation mode.
        layers: Paths of the layers to consider.
        inputs: Batch on the device of the network, for one forward pass. A batch of a single sample will do only if all
            batches have a single sample: with one sample, broadcast operands have the shape of full operands.
    """
    return {
        path: norm
        for path, norm, made, reader in _readers(network, trace_graph(network, inputs), layers)
        if reader is not None and _is_sum(reader) and reader.shape == made.shape
    }


def sum_behind(graph: ComputationGraph, path: str) -> int | None:
    """Return the index of the sum of a stream and the output of a layer, perhaps times a factor; None without one.

    Args:
        graph: Graph of a network on more than one sample, if available.
        path: Path of the layer.
    """
    nodes = graph.by_module.get(path, ()) if graph.times[path] == 1 else ()
    if len(nodes) != 1:
        return None
    reader = _only_reader(graph, nodes[0])
    if reader is not None and reader.operation == "mul" and len(reader.inputs) == 1 and len(reader.weights) <= 1:
        reader = _only_reader(graph, reader)
    if reader is None or not _is_sum(reader) or reader.shape != nodes[0].shape:
        return None
    return reader.index


def norms_behind(network: nn.Module, graph: ComputationGraph, layers: Iterable[str]) -> dict[str, str]:
    """Return the path of the plain BatchNorm behind each layer, its only reader, or `NO_NORM`.

    Args:
        network: Network in evaluation mode.
        graph: Graph of the network.
        layers: Paths of the layers to consider.
    """
    return {path: norm for path, norm, _, _ in _readers(network, graph, layers)}


def _readers(
    network: nn.Module, graph: ComputationGraph, layers: Iterable[str]
) -> Iterator[tuple[str, str, Node, Node | None]]:
    """Yield each layer with one call in a pass, the BatchNorm behind the layer, the output, and the only reader."""
    norms = {path for path, norm in batchnorms(network).items() if norm.affine and _is_plain(norm)}
    norms &= {path for path in norms if graph.times[path] == 1}
    for path in layers:
        for made in graph.by_module.get(path, ()) if graph.times[path] == 1 else ():
            norm, reader = NO_NORM, _only_reader(graph, made)
            over_outputs = isinstance(get_module(network, path), nn.Conv2d) or len(made.shape) == 2
            if reader is not None and reader.kind == "norm" and reader.module in norms and over_outputs:
                norm, reader = reader.module, _only_reader(graph, reader)
            yield path, norm, made, reader


def at_end(passes: FrontToBack, path: str, norm: str, inputs: ModelInputs) -> list[tuple[Tensor, Tensor]]:
    """Return the input of a layer at the end of a branch, and the sum behind the layer; the pass stops there.

    The list is empty if the batch does not reach the sum.

    Args:
        passes: Passes of a network, up to layers in order.
        path: Path of the layer, called once in a pass.
        norm: Path of the BatchNorm behind the layer, or `NO_NORM`.
        inputs: Batch to run.
    """
    seen: dict[str, Tensor] = {}

    def enter(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen["entered"] = first_tensor(args, kwargs).clone()

    layer, last = (get_module(passes.network, each) for each in (path, norm or path))
    handles = (
        layer.register_forward_pre_hook(enter, with_kwargs=True),
        last.register_forward_hook(lambda _, __, output: seen.update(given=output)),
    )
    with until_reached(*handles), SumSeen(seen):
        passes.run(inputs, path)
    return [(seen["entered"], seen["sum"])] if "sum" in seen else []


class SumSeen(TorchFunctionMode):
    """Torch mode to copy the sum of a given tensor and a second operand, and to end the pass.

    Args:
        seen: Record with the tensor under "given" once set by a hook; the mode writes "sum". If a tensor of factors or
            a number multiplies the tensor first, the mode writes "scale" or "factor", and the product becomes "given".
    """

    def __init__(self, seen: dict[str, Tensor]) -> None:
        super().__init__()
        self.seen = seen

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function of torch, and check an addition for the given tensor."""
        kwargs = kwargs or {}
        found = func(*args, **kwargs)  # perhaps in place
        given, operands = self.seen.get("given"), (*args, *kwargs.values())
        if given is None or not any(own is given for own in operands):
            return found
        if func in PRODUCTS and len(factors := [own for own in operands if _is_factor(own, given)]) == 1:
            name = "scale" if isinstance(factors[0], Tensor) else "factor"
            self.seen |= {"given": found, name: torch.as_tensor(factors[0])}
        if func in ADDITIONS:
            self.seen["sum"] = found / (kwargs.get("alpha", 1) if operands[0] is not given else 1)
            raise Reached
        return found


def _is_factor(operand: object, given: Tensor) -> bool:
    """Whether an operand of a product is a number, or holds a single number, or a number per feature of the input."""
    if isinstance(operand, Tensor):
        return operand is not given and operand.numel() in (1, given.shape[-1])
    return isinstance(operand, float | int)


def _is_sum(node: Node) -> bool:
    """Whether a node adds two tensors; an operand may depend on weights alone, but no operand is a number."""
    return node.operation == "add" and (len(node.inputs) == 2 or bool(node.weights))


def _only_reader(graph: ComputationGraph, node: Node) -> Node | None:
    """Return the single reader of the output of a node, past aliases; None if there are several."""
    readers = graph.readers[node.index]
    reader = graph.nodes[readers[0]] if len(readers) == 1 else None
    if reader is None or [edge.node for edge in reader.inputs].count(node.index) != 1:
        return None
    return _only_reader(graph, reader) if reader.kind == "identity" and reader.operation == "alias" else reader


def _is_plain(norm: nn.Module) -> bool:
    """Whether a BatchNorm only normalises; a BatchNorm of timm may hold an activation."""
    return isinstance(getattr(norm, "act", None), nn.Identity | None)
