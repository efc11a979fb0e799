"""Layers whose output is added to a stream: what ends a branch, and the sum that it is part of.

What such a layer gives, behind its BatchNorm if it has one, is one part of a sum; the other part is what has come
so far. The computation graph shows them. The sum itself is seen as a function of torch, so that any forward will do, in
place or not.
"""

from __future__ import annotations

from collections.abc import Iterable
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
NO_NORM = ""


def branch_ends(network: nn.Module, layers: Iterable[str], inputs: ModelInputs) -> dict[str, str]:
    """Return which layers end a branch, with the path of the BatchNorm behind each, or `NO_NORM`.

    Left out is what anything else reads, such as the beginning of a stream, what something changes before it is added,
    such as an activation, and what shares its BatchNorm with others. Only a plain BatchNorm over the layer's outputs
    counts as one behind it: not one that holds an activation, nor one over tokens.

    Args:
        network: In evaluation mode.
        layers: Paths of those that may.
        inputs: One batch on the network's device, for one forward pass. Of one sample only if all are: what has the
            shape of a sum does not follow from it otherwise.
    """
    graph = trace_graph(network, inputs)
    norms = {path for path, norm in batchnorms(network).items() if norm.affine and _is_plain(norm)}
    norms &= {path for path in norms if graph.times[path] == 1}
    found: dict[str, str] = {}
    for path in layers:
        for made in graph.by_module.get(path, ()) if graph.times[path] == 1 else ():
            norm, reader = NO_NORM, _only_reader(graph, made)
            over_outputs = isinstance(get_module(network, path), nn.Conv2d) or len(made.shape) == 2
            if reader is not None and reader.kind == "norm" and reader.module in norms and over_outputs:
                norm, reader = reader.module, _only_reader(graph, reader)
            if reader is not None and _is_sum(reader) and reader.shape == made.shape:
                found[path] = norm
    return found


def at_end(passes: FrontToBack, path: str, norm: str, inputs: ModelInputs) -> list[tuple[Tensor, Tensor]]:
    """Return what enters a layer that ends a branch, and the sum that what it gives is part of; the pass stops there.

    Nothing, if this batch does not reach the sum.

    Args:
        passes: Of a network, up to layers in order.
        path: Path of the layer, which a pass calls once.
        norm: Path of the BatchNorm behind it, or `NO_NORM`.
        inputs: One of the batches.
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
    """Notes a copy of the sum of what was given and something else, and ends the pass.

    Args:
        seen: Holds what was given, once it is; gets the sum.
    """

    def __init__(self, seen: dict[str, Tensor]) -> None:
        super().__init__()
        self.seen = seen

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function of torch, and look at what it adds."""
        kwargs = kwargs or {}
        found = func(*args, **kwargs)  # perhaps in place
        given, operands = self.seen.get("given"), (*args, *kwargs.values())
        if func in ADDITIONS and given is not None and any(own is given for own in operands):
            self.seen["sum"] = found / (kwargs.get("alpha", 1) if operands[0] is not given else 1)
            raise Reached
        return found


def _is_sum(node: Node) -> bool:
    """Whether a node adds two tensors; one of them may be of weights alone, but none a number."""
    return node.operation == "add" and (len(node.inputs) == 2 or bool(node.weights))


def _only_reader(graph: ComputationGraph, node: Node) -> Node | None:
    """Return what alone reads the output of a node, once, beyond what hands it on as it is; None if others do, too."""
    readers = graph.readers[node.index]
    reader = graph.nodes[readers[0]] if len(readers) == 1 else None
    if reader is None or [edge.node for edge in reader.inputs].count(node.index) != 1:
        return None
    return _only_reader(graph, reader) if reader.kind == "identity" and reader.operation == "alias" else reader


def _is_plain(norm: nn.Module) -> bool:
    """Whether a BatchNorm does nothing else; that of timm may hold an activation."""
    return isinstance(getattr(norm, "act", None), nn.Identity | None)
