"""Maps that blocks of any network leave: where they can stand, which blocks they serve, and their last fit."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from prunerecover.calibration.block_maps import BlockMap, MapPlace, maps_alone, refit_in_order, tensors_of
from prunerecover.calibration.moments import LARGEST
from prunerecover.depth.layers.removals import Removals
from prunerecover.depth.layers.variants import Variants
from prunerecover.families.transformers_layers import read_stacks
from prunerecover.graph.branches import GraphUnit
from prunerecover.model.batches import CalibrationSet
from prunerecover.model.paths import get_module
from prunerecover.plan.units import Unit


def map_places(removals: Removals) -> tuple[MapPlace, ...]:
    """Return the blocks that a map can stand in for, in order of execution.

    Not those in a list that transformers' configs count: taken out of it, they leave a standard model.
    """
    counted = {block.path for stack in read_stacks(removals.model) for block in stack.blocks}
    found = (_place(removals, unit) for unit in removals.units_on_graph() if unit.name not in counted)
    return tuple(place for place in found if place is not None)


def fit_alone(variants: Variants, samples: CalibrationSet) -> None:
    """Have each block leave the map, or the identity, that changes the output least where it alone goes.

    Args:
        variants: Judges networks; its removals get the maps.
        samples: Maps are fitted on a part of them, and judged on the rest.
    """
    removals = variants.removals
    places = map_places(removals)
    found = maps_alone(removals.model, places, samples.fit) if places else {}
    units = {unit.name: unit for unit in removals.units}
    for path, maps in found.items():
        divergence: dict[BlockMap | None, float] = {None: variants.held_out([units[path]])}
        for one in maps:
            removals.maps[path] = one
            divergence[one] = variants.held_out([units[path]])
        best = min(divergence, key=lambda one: divergence[one])
        removals.maps.pop(path)
        removals.maps |= {path: best} if best is not None else {}


def refit_together(variants: Variants, samples: CalibrationSet, units: Sequence[Unit]) -> dict[str, BlockMap]:
    """Return maps by path, fitted anew behind each other where that brings the output nearer to the dense one's.

    Args:
        variants: Judges networks; its removals have the maps that were fitted alone, and keep them.
        samples: As of `fit_alone`.
        units: All that goes.
    """
    removals, alone = variants.removals, variants.removals.maps
    edits = removals.edits(units, in_place=True)
    if len(units) < 2 or not tensors_of(edits, alone):
        return alone
    ridges = {path: one.ridge for path, one in alone.items()}
    together = alone | refit_in_order(removals.model, edits, samples.fit, ridges)
    before = variants.held_out(units)
    try:
        removals.maps = together
        return together if variants.held_out(units) <= before else alone
    finally:
        removals.maps = alone


def _place(removals: Removals, unit: GraphUnit) -> MapPlace | None:
    """Return where the channels of a block's stream lie: along dimension 1 if a convolution reads it first."""
    if unit.kind != "block" or set(unit.modules) != {unit.name}:
        return None
    call = next(call for call in removals.graph.calls if call.path == unit.name)
    layers = [node for node in removals.graph.nodes if node.index in unit.nodes and node.kind == "layer"]
    block: nn.Module = get_module(removals.model, unit.name)
    if len(call.given_shape) not in (2, 3, 4, 5) or not layers or not any(p.ndim > 1 for p in block.parameters()):
        return None
    dim = 1 if "convolution" in layers[0].operation else -1
    channels = call.given_shape[dim]
    return MapPlace(unit.name, dim, channels) if channels <= LARGEST else None
