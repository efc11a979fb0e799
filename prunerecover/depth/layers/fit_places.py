"""Places of fitted replacements: for branches and blocks on the graph, layers, activations, and parts of families."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from math import prod

from torch import nn

from prunerecover.calibration.moments import LARGEST
from prunerecover.calibration.places import FitPlace, family_places
from prunerecover.depth.layers.pruned_graph import NotRemovable
from prunerecover.depth.layers.removals import Removals
from prunerecover.families.describe import is_supported
from prunerecover.families.transformers_layers import read_stacks
from prunerecover.graph.branches import GraphUnit
from prunerecover.graph.computation_graph import ComputationGraph, Node
from prunerecover.model.paths import get_module
from prunerecover.plan.edits import Bypass, Patch
from prunerecover.plan.units import Unit


def fit_places(removals: Removals) -> tuple[FitPlace, ...]:
    """Return the places of fitted replacements of units, in order of execution.

    Blocks in a list counted by transformers' configs have no place: their removal leaves a standard model.
    """
    counted = {block.path for stack in read_stacks(removals.model) for block in stack.blocks}
    on_graph = {unit.name: unit for unit in removals.units_on_graph()}
    family = is_supported(removals.model)
    found = list[FitPlace | None]()
    for unit in removals.units:
        if unit.name in on_graph and unit.name not in counted:
            found.append(_place(removals, on_graph[unit.name]))
        elif family and unit.kind != "layer":
            found += _family_places(removals, unit)
        elif unit.name not in counted:
            found.append(_place_of_one(removals, unit))
    return tuple(place for place in found if place is not None)


def _family_places(removals: Removals, unit: Unit) -> list[FitPlace]:
    """Return the places of a unit of a supported family, with channels last and few enough for second moments."""
    shapes = {call.path: call.shape for call in removals.graph.calls}
    places = family_places(removals.model, unit.name)
    return [p for p in places if p.channels <= LARGEST and shapes.get(p.gives, ())[-1:] == (p.channels,)]


def _place(removals: Removals, unit: GraphUnit) -> FitPlace | None:
    """Return the place of a unit's replacement."""
    graph = removals.graph
    path = next((own for own, one in unit.modules.items() if one.leaves in ("zero", "zeros")), unit.name)
    if unit.kind == "block" and set(unit.modules) != {path}:
        return None
    number = next(number for number, call in enumerate(graph.calls) if call.path == path)
    shape = graph.calls[number].shape
    layers = [node for node in graph.nodes if node.index in unit.nodes and node.kind == "layer"]
    held = [p for own in unit.modules for p in get_module(removals.model, own).parameters()]
    if not layers or not any(p.ndim > 1 for p in held):
        return None
    dim = _channels(removals, path, layers[0 if unit.kind == "block" else -1], shape)
    if not dim:
        return None
    entry = path if unit.kind == "block" else _entry(graph, unit, number)
    inside = {n for own, call in zip(graph.inside, graph.calls, strict=True) if call.path in unit.modules for n in own}
    trains = any(graph.nodes[n].weights for n in unit.nodes - inside if n < min(graph.inside[number]))
    where = (unit.name, unit.kind, path, path, dim, shape[dim], unit.modules)
    return FitPlace(*where, entry, prod(shape) // shape[dim], trains)


def _place_of_one(removals: Removals, unit: Unit) -> FitPlace | None:
    """Return the place of a replacement of a layer or an activation, if no further module changes."""
    graph = removals.graph
    try:
        edits = [edit for edit in removals.edits([unit], in_place=True) if not isinstance(edit, Patch)]
    except NotRemovable:
        return None
    (node,) = graph.by_module.get(unit.name, (None,))[:1]
    if node is None or len(edits) != 1 or not isinstance(edits[0], Bypass) or node.given != node.shape:
        return None
    dim = _channels(removals, unit.name, node, node.shape)
    if edits[0].unit != unit.name or not dim:
        return None
    modules, channels = edits[0].modules, node.shape[dim]
    if _is_shared(removals.model, modules):
        return None
    gives = max(modules, key=lambda path: graph.first_in.get(path, -1))
    where = (unit.name, unit.kind, unit.name, gives, dim, channels, modules)
    return FitPlace(*where, unit.name, prod(node.shape) // channels)


def _channels(removals: Removals, path: str, layer: Node, shape: Sequence[int]) -> int:
    """Return the dimension of the channels in a module's output: by the trace, or as usual for a layer's operation.

    It is 1 or -1, with few enough channels for second moments; 0 where no replacement can be fitted.

    Args:
        removals: Removable units, with the trace.
        path: Path of the module.
        layer: Layer in the module: of a block the first, which reads the stream; of a branch the last, whose output is
            added.
        shape: Shape of the output.
    """
    dim = removals.traced.ties.channels.get(path, layer.channels)
    fitting = len(shape) in (2, 3, 4, 5) and dim in (1, -1) and 0 < shape[dim] <= LARGEST
    return dim if fitting else 0


def _is_shared(model: nn.Module, paths: Iterable[str]) -> bool:
    """Whether a module of some paths has further paths, too, as an activation shared by all layers of a network."""
    held = Counter(id(module) for _, module in model.named_modules(remove_duplicate=False))
    return any(held[id(get_module(model, path))] > 1 for path in paths)


def _entry(graph: ComputationGraph, unit: GraphUnit, number: int) -> str:
    """Return the module whose input reaches the last call of a branch once all earlier calls hand on their input.

    Args:
        graph: Graph of the dense network.
        unit: The branch.
        number: Number of the last call.

    Returns:
        The module's path; empty where code between modules changes the inputs.
    """
    edge = graph.entered[number]
    while edge is not None and edge.node in unit.nodes:
        inside = (n for n, call in enumerate(graph.calls) if call.path in unit.modules and edge.node in graph.inside[n])
        number = next(inside, -1)
        edge = graph.entered[number] if number >= 0 else None
    return graph.calls[number].path if edge is not None else ""
