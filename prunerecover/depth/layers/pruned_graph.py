"""Prune(f): removal of layers one after another, on paper, and the edits of the network.

A layer f gives way to an identity. Where the input is i wide and the output o, the wider side is narrowed first: the
least important units go, with everything coupled to the units. The norm and activation that serve f alone go, too.
Sums, products and concatenations left behind are patched: where all operands are the same tensor, all but the first
become neutral, and x + x is x. Gate, up and down of a gated MLP, removed in turn, are the MLP; with the attention, the
block.

From a thesis on fine-grained depth pruning (Delft, 2025), on the graph of a single forward pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from prunerecover.depth.layers.copies import Copies
from prunerecover.depth.layers.leaving import least_important
from prunerecover.depth.layers.patching import NOTHING_DROPPED, Dropped, patches
from prunerecover.depth.layers.widths import FIXED, Units, Widths, importance_per_unit
from prunerecover.graph.branches import GraphUnit
from prunerecover.graph.build import CONCATENATIONS
from prunerecover.graph.computation_graph import ComputationGraph, Node
from prunerecover.graph.coupling import coupled_nodes, own_call, whole_modules
from prunerecover.graph.layers import is_layer, is_resizing
from prunerecover.model.linears import is_transposed
from prunerecover.model.paths import get_module
from prunerecover.plan.edit_parts import StandIn
from prunerecover.plan.edits import Bypass, Edit, Narrow, Patch, Reroute
from prunerecover.surgery.forward.rewritten_forward import find_rewriting

ROUNDS = 4  # of narrowing one side of a layer after the other, where units leave together


class NotRemovable(ValueError):
    """A layer cannot be removed from the present network; the message says why."""


@dataclass
class PrunedGraph:
    """A network and the removals so far.

    Attributes:
        model: The dense network; never changed.
        graph: Graph of the dense network.
        widths: Present widths.
        gone: Indices of the nodes that hand on their input, or averages of the input.
        edits: Edits of the removals, but for the patches.
        rerouted: Calls that forwards are to make no more, by path of the module: activations that are functions, or
            modules called several times. Rerouted calls go last, for rewriting a forward fixes the sizes in the code.
    """

    model: nn.Module
    graph: ComputationGraph
    widths: Widths
    gone: frozenset[int] = frozenset()
    edits: tuple[Edit, ...] = ()
    rerouted: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    _along: dict[tuple[str, int], Tensor] = field(default_factory=dict)

    def copy(self) -> PrunedGraph:
        """Return a state of its own, for a trial."""
        return replace(self, widths=self.widths.copy(), _along=dict(self._along_dimensions()))

    def prune(self, path: str) -> None:
        """Remove a layer.

        Raises:
            NotRemovable: If the layer's widths cannot be reconciled, or a coupled operation is neither a module nor a
                call in code that can be rewritten.
        """
        layer = self._node(path)
        coupled = coupled_nodes(self.graph, layer, self.gone)
        served, calls = whole_modules(self.graph, coupled)
        rerouted = self._rerouted(path, calls)
        narrowed = self._reconcile(path, layer)
        modules = {path: self._stand_in(layer, coupled)}
        modules |= dict.fromkeys(served, StandIn())
        self.rerouted = rerouted
        self.gone |= {layer.index, *(node.index for node in coupled)}
        self.widths.forget(modules)
        self.edits = (*self.edits, *narrowed, Bypass(unit=path, kind="layer", modules=modules))

    def tie_ends(self, block: GraphUnit) -> None:
        """Tie the widths of a block's input and output, for an identity is to take the place of the block."""
        inside = block.nodes
        entering = {edge.node for index in inside for edge in self.graph.nodes[index].inputs if edge.node not in inside}
        leaving = {index for index in inside if not inside.issuperset(self.graph.readers[index])}
        ends = [self._units_behind(self.graph.nodes[index]) for index in (*entering, *leaving)]
        sides = [units for units in ends if units is not None]
        if len(sides) == 2 and len(sides[0]) == len(sides[1]) and not np.array_equal(sides[0], sides[1]):
            self.widths.tie(sides[0], sides[1])

    def _units_behind(self, node: Node) -> Units | None:
        """Return the units of a node's output, as read by the first layer ahead."""

        def stop(reader: Node) -> bool:
            return reader.kind in ("layer", "product", "movement") or reader.operation in CONCATENATIONS

        for reader in self.graph.ahead(node, stop):
            module = get_module(self.model, reader.module)
            if reader.kind == "layer" and reader.whole and is_layer(module):
                depthwise = isinstance(module, _ConvNd) and module.groups == module.in_channels == module.out_channels
                return self._sides(reader.module, module)[depthwise]  # depthwise: single inputs
        return None

    def check_code(self, path: str) -> None:
        """Raise NotRemovable if operations coupled to a layer are neither modules nor calls in rewritable code."""
        self._rerouted(path, whole_modules(self.graph, coupled_nodes(self.graph, self._node(path), self.gone))[1])

    def finishing(
        self, dropped: Dropped = NOTHING_DROPPED, without: tuple[str, ...] = (), computing: Set[str] = frozenset()
    ) -> tuple[Edit, ...]:
        """Return the last edits: patches of joins, emptied modules, rewritten forwards.

        Args:
            dropped: Branches removed as well.
            without: Prefixes of the paths of modules removed by then.
            computing: Paths of layers with fitted replacements.
        """
        copies = self._copies(dropped, computing)
        found = patches(self.graph, self._handing_on(computing), dropped, copies.drop, self._pooled())
        found = {path: stand_in for path, stand_in in found.items() if not f"{path}.".startswith(without)}
        emptied = (*(f"{path}." for path in found), *without)
        rerouted = [
            Reroute(unit=path, calls=calls)
            for path, calls in self.rerouted.items()
            if not f"{path}.".startswith(emptied)
        ]
        return (*copies.edits, *([Patch(modules=found)] if found else []), *rerouted)

    def _pooled(self) -> dict[int, StandIn]:
        """Poolings in the place of strided layers, by node."""
        modules = {path: s for edit in self.edits if isinstance(edit, Bypass) for path, s in edit.modules.items()}
        left = {node.index: modules.get(node.module) for node in map(self.graph.nodes.__getitem__, self.gone)}
        return {index: stand_in for index, stand_in in left.items() if stand_in and stand_in.leaves == "pool"}

    def _handing_on(self, computing: Set[str] = frozenset()) -> frozenset[int]:
        """Indices of the nodes replaced by identities, not by poolings or fitted replacements."""
        gone = (self.graph.nodes[index] for index in self.gone)
        return frozenset(node.index for node in gone if not is_resizing(node) and node.module not in computing)

    def _copies(self, dropped: Dropped, computing: Set[str] = frozenset()) -> Copies:
        passing = self._handing_on(computing) | dropped.streams.keys()
        return Copies(self.model, self.graph, self.widths.copy(), passing, dropped.nodes)

    def _node(self, path: str) -> Node:
        nodes = [node for node in self.graph.by_module.get(path, ()) if node.kind == "layer"]
        if len(nodes) != 1 or nodes[0].index in self.gone:
            raise NotRemovable(
                f"Expected '{path}' to be a present layer that is called once, but it is not. Was it removed before?"
            )
        return nodes[0]

    def _rerouted(self, path: str, nodes: Sequence[Node]) -> dict[str, tuple[str, ...]]:
        """Return all calls that forwards are to make no more, with the calls of these nodes."""
        rerouted = dict(self.rerouted)
        for node in nodes:
            found = own_call(self.model, self.graph, node)
            if found is None:
                raise NotRemovable(
                    f"Expected what goes with '{path}' to be modules or calls of a module that runs once, but "
                    f"'{self.graph.name(node)}' is neither; make it a module."
                )
            rerouted[found[0]] = (*rerouted.get(found[0], ()), found[1])
        for module in {found[0] for node in nodes if (found := own_call(self.model, self.graph, node))}:
            try:
                find_rewriting(get_module(self.model, module), rerouted[module], f"'{module}'")
            except ValueError as error:
                raise NotRemovable(
                    f"Expected what goes with '{path}' to be modules, or in code that can be rewritten; {error}"
                ) from error
        return rerouted

    def _stand_in(self, layer: Node, coupled: Sequence[Node]) -> StandIn:
        module = get_module(self.model, layer.module)
        if isinstance(module, _ConvNd) and layer.given[2:] != layer.shape[2:]:
            padding = module.padding if isinstance(module.padding, tuple) else (0,) * len(module.stride)
            return StandIn(leaves="pool", window=(tuple(module.kernel_size), tuple(module.stride), tuple(padding)))
        gone = self.gone | {layer.index, *(node.index for node in coupled)}
        return StandIn(leaves="copy") if self.graph.is_overwritten(layer, gone) else StandIn()

    def _reconcile(self, path: str, layer: Node) -> list[Narrow]:
        """Narrow the wider side of a layer, and tie input and output."""
        module = get_module(self.model, path)
        entering, leaving = self._sides(path, module)
        if isinstance(module, _ConvNd) and module.groups > 1:
            if module.in_channels != module.out_channels:
                raise NotRemovable(f"Expected '{path}' to have one width, but it is grouped and makes other channels.")
            return []
        before = self.widths.copy(), dict(self._along)
        edits: list[Narrow] = []
        try:
            for _ in range(ROUNDS):
                excess = len(leaving) - len(entering)
                wide, other = (leaving, entering) if excess > 0 else (entering, leaving)
                edits += self._narrow(path, wide, other, abs(excess)) if excess else []
                entering, leaving = self._sides(path, module)
        except NotRemovable:
            self.widths, self._along = before
            raise
        if len(entering) != len(leaving):
            self.widths, self._along = before
            raise NotRemovable(f"Expected the widths of '{path}' to meet, but units on both sides leave together.")
        self.widths.tie(entering, leaving)
        return edits

    def _sides(self, path: str, module: nn.Module) -> tuple[Units, Units]:
        """Return the units along a layer's input and output."""
        weight = module.get_parameter("weight")
        made, read = (1, 0) if is_transposed(module) else (0, 1)
        name = f"{path}.weight"
        return tuple(self.widths.units(name, dim, weight.shape[dim]) for dim in (read, made))  # type: ignore[return-value]

    def _narrow(self, path: str, wide: Units, other: Units, excess: int) -> list[Narrow]:
        scores = importance_per_unit(self.widths, self._along_dimensions())
        chosen, narrowed = least_important(self.widths, wide, other, excess, scores)
        if narrowed < excess:
            fixed = int((wide == FIXED).sum())
            raise NotRemovable(
                f"Expected {excess} of the {len(wide)} units on the wider side of '{path}' to be removable, but "
                f"{narrowed} are; {fixed} are fixed by something that reads or makes them besides"
                f"{', and parts of tensors that code cuts equally must lose as many' if self.widths.links else ''}."
            )
        for place, own in self.widths.along.items():
            if place in self._along:
                self._along[place] = self._along[place][torch.from_numpy(~np.isin(own, chosen))]
        return [edit.model_copy(update={"serves": path}) for edit in self.widths.remove(chosen)]

    def _along_dimensions(self) -> dict[tuple[str, int], Tensor]:
        """Return the squared weights of each index along each dimension, summed over all further dimensions."""
        if not self._along:
            tensors = dict(self.model.named_parameters())
            for name, dim in self.widths.along:
                if name in tensors:
                    values = tensors[name].detach().square()
                    others = [d for d in range(values.ndim) if d != dim]
                    self._along[name, dim] = (values.sum(others) if others else values).cpu()
        return self._along
