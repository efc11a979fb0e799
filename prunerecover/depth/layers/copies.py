"""Concatenations of a tensor with itself, left by removed layers, and removal of the copies from all readers."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field

import numpy as np
from torch import nn
from torch.nn.modules.conv import _ConvNd

from prunerecover.depth.layers.widths import TensorDim, Widths
from prunerecover.graph.computation_graph import ComputationGraph, Node
from prunerecover.graph.layers import is_layer
from prunerecover.model.linears import is_transposed
from prunerecover.model.paths import get_module
from prunerecover.plan.edits import Narrow
from prunerecover.plan.groups import Slice

POOLS = frozenset(
    (
        *("max_pool2d", "max_pool2d_with_indices", "avg_pool2d", "adaptive_avg_pool2d", "_adaptive_avg_pool2d"),
        *("upsample_nearest2d", "upsample_bilinear2d"),
    )
)


@dataclass
class Copies:
    """Removal of copied entries behind concatenations.

    Attributes:
        model: The dense network.
        graph: Graph of the model.
        widths: Widths after the removal of layers; copies are removed here, too.
        passing: Indices of the nodes that hand on their input.
        dropped: Indices of the nodes that go with branches and blocks.
        edits: Edits found so far.
    """

    model: nn.Module
    graph: ComputationGraph
    widths: Widths
    passing: Set[int]
    dropped: Set[int]
    edits: list[Narrow] = field(default_factory=list)

    def drop(self, join: Node, stays: int) -> bool:
        """Keep a single operand of a concatenation, and return whether all readers can do without the copies.

        Args:
            join: The concatenation, of a tensor with itself.
            stays: Number of the operand that stays.
        """
        dim = next((d for d, (a, b) in enumerate(zip(join.given, join.shape, strict=False)) if a != b), -1)
        places = self._places(join, dim)
        if not places:
            return False
        lengths = {place: len(self._units(place)) for place in places}
        (length,) = set(lengths.values()) if len(set(lengths.values())) == 1 else (0,)
        share, rest = divmod(length, len(join.inputs))
        if rest or not share or not all(self._repeats(place, share) for place in places):
            return False
        parts = tuple(Slice(tensor=t, dim=d, offsets=(0,), span=share, makes=makes) for (t, d), makes in places.items())
        name = self.graph.name(join)
        self.edits.append(Narrow(unit=name, kind="channel", of=len(join.inputs), keep=(stays,), group=parts))
        for place in places:
            self.widths.along[place] = self._units(place)[stays * share : (stays + 1) * share]
        return True

    def _units(self, place: TensorDim) -> np.ndarray:
        tensors = dict(self.model.named_parameters()) | dict(self.model.named_buffers())
        return self.widths.units(*place, tensors[place[0]].shape[place[1]])

    def _repeats(self, place: TensorDim, share: int) -> bool:
        parts = self._units(place).reshape(-1, share)
        return bool((parts == parts[0]).all())

    def _places(self, join: Node, dim: int) -> dict[TensorDim, bool]:
        """Return the dimensions that read the concatenation, and whether each makes entries for later readers.

        Empty if any reader is unknown.
        """
        found: dict[TensorDim, bool] = {}
        for node in self.graph.ahead(join, self._stops):
            module = get_module(self.model, node.module)
            if node.index in self.dropped:
                return {}
            if node.index in self.passing:
                continue
            if node.kind == "layer" and node.whole and is_layer(module) and getattr(module, "groups", 1) == 1:
                if dim != (1 if isinstance(module, _ConvNd) else len(node.given) - 1):
                    return {}
                found[f"{node.module}.weight", 0 if is_transposed(module) else 1] = False
            elif node.kind == "norm" and node.whole and "batch_norm" in node.operation and dim == 1:
                held = (*module.named_parameters(node.module), *module.named_buffers(node.module))
                found |= {(name, 0): True for name, tensor in held if tensor.ndim == 1}
            elif not self._keeps(node, dim):
                return {}
        return found

    def _stops(self, node: Node) -> bool:
        return node.kind == "layer" and node.index not in self.passing

    def _keeps(self, node: Node, dim: int) -> bool:
        """Whether a node treats each entry along a dimension alone, whatever their number."""
        alike = len(node.given) == len(node.shape) and node.given[dim] == node.shape[dim]
        return not node.weights and (node.kind in ("identity", "activation") or node.operation in POOLS) and alike
