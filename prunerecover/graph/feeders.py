"""Feeders: parts that compute for a unit alone, and get no gradient once the unit is removed."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from functools import cached_property

from torch import nn

from prunerecover.graph.branches import GraphUnit
from prunerecover.graph.computation_graph import ComputationGraph, Edge
from prunerecover.model.paths import get_module, is_within


@dataclass(frozen=True)
class Feeders:
    """The parameters of a network that get gradients, and where these come from.

    Attributes:
        model: Dense network.
        graph: Computation graph of the dense network.
    """

    model: nn.Module
    graph: ComputationGraph

    def serving(self, units: Sequence[GraphUnit], taken_out: Sequence[str]) -> dict[str, str]:
        """Return the parameters that serve `units` alone and would lose all gradients, in the model's order.

        Args:
            units: Blocks and branches to remove.
            taken_out: Paths of the removed modules.

        Returns:
            Path of the module to remove as well, by path of the parameter: a module without further readers, for
            example the norm of two parallel branches. Empty path without a module.
        """
        left = (trained - self._weights(self._reached(end, units)) for end, trained in self._trained.items())
        lost = frozenset[str]().union(*left)
        below = tuple(f"{path}." for path in taken_out)
        names = {first: [own for own in self._names[first] if not own.startswith(below)] for first in self._names}
        dead = {first: own for first, own in names.items() if own and first in lost}
        if not dead:
            return {}
        (every, *_) = self._trained
        used = self._reached(every, units, gradients=False)
        idle = self._idle(used, taken_out)
        return {
            first: next((path for path in idle if all(is_within(name, path) for name in own)), "")
            for first, own in dead.items()
        }

    @cached_property
    def _trained(self) -> dict[frozenset[int], frozenset[str]]:
        """The weights that losses of the outputs train, by the output nodes.

        The keys are all outputs, and the judged output alone. Weights trained only by further outputs (a state) stay
        unchanged where no loss uses the outputs.
        """
        ends = [frozenset(node.index for node in self.graph.of_kind("output"))]
        ends += [] if self.graph.judged is None else [frozenset([self.graph.judged.node])]
        return {end: self._weights(self._reached(end, ())) for end in ends}

    @cached_property
    def _names(self) -> dict[str, list[str]]:
        """All names of each parameter, by the first name."""
        found: dict[int, list[str]] = {}
        for name, parameter in self.model.named_parameters(remove_duplicate=False):
            found.setdefault(id(parameter), []).append(name)
        return {names[0]: names for names in found.values()}

    def _weights(self, nodes: Set[int]) -> frozenset[str]:
        return frozenset(weight for index in nodes for weight in self.graph.nodes[index].weights)

    def _reached(self, end: Set[int], units: Sequence[GraphUnit], *, gradients: bool = True) -> frozenset[int]:
        """Return the indices of the nodes that `end` depends on, without `units`.

        Args:
            end: Indices of nodes.
            units: Blocks and branches to remove.
            gradients: Whether to follow only differentiable ways.
        """
        nodes, replaced = self.graph.nodes, self._replaced(units)
        seen = set(end)
        waiting = list(seen)
        while waiting:
            node = nodes[waiting.pop()]
            for edge in replaced.get(node.index, node.inputs):
                if edge.node not in seen and (nodes[edge.node].differentiable or not gradients):
                    seen.add(edge.node)
                    waiting.append(edge.node)
        return frozenset(seen - replaced.keys())

    def _replaced(self, units: Sequence[GraphUnit]) -> dict[int, tuple[Edge, ...]]:
        """Return the inputs that replacements pass on, by index of a removed node; none at the end of a branch.

        Code of a branch outside all modules still runs, for example a scale behind the last module.
        """
        graph, stand_ins = self.graph, {path: one for unit in units for path, one in unit.modules.items()}
        found: dict[int, tuple[Edge, ...]] = {}
        for call, inside, edge in zip(graph.calls, graph.inside, graph.entered, strict=True):
            if call.path in stand_ins:
                hands_on = edge is not None and stand_ins[call.path].leaves in ("identity", "copy")
                found |= dict.fromkeys(inside, (edge,) if hands_on and edge is not None else ())
        return found

    def _idle(self, used: Set[int], taken_out: Sequence[str]) -> list[str]:
        """Return paths of unread modules without parameters in use, larger modules first."""
        read = self._weights(used)
        found = []
        for call, inside in zip(self.graph.calls, self.graph.inside, strict=True):
            apart = not any(is_within(call.path, path) or is_within(path, call.path) for path in taken_out)
            if call.path and apart and self.graph.times[call.path] == 1 and not inside & used:
                module = get_module(self.model, call.path)
                names = (f"{call.path}.{name}" for name, _ in module.named_parameters())
                found += [] if read.intersection(names) else [call.path]
        return found
