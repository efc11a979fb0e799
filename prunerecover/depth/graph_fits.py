"""What units of any network leave that is fitted: where it can stand, which units it serves, and its last fit."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod

from prunerecover.calibration.moments import LARGEST
from prunerecover.calibration.stand_in_fits import Fit, FitPlace, fits_alone, refit_in_order, tensors_of
from prunerecover.depth.layers.removals import Removals
from prunerecover.depth.layers.variants import Variants
from prunerecover.families.transformers_layers import read_stacks
from prunerecover.graph.branches import GraphUnit
from prunerecover.graph.computation_graph import ComputationGraph
from prunerecover.model.batches import CalibrationSet
from prunerecover.model.paths import get_module
from prunerecover.plan.units import Unit


def fit_places(removals: Removals) -> tuple[FitPlace, ...]:
    """Return where something fitted can stand for blocks and branches, in order of execution.

    Not for blocks in a list that transformers' configs count: taken out of it, they leave a standard model.
    """
    counted = {block.path for stack in read_stacks(removals.model) for block in stack.blocks}
    found = (_place(removals, unit) for unit in removals.units_on_graph() if unit.name not in counted)
    return tuple(place for place in found if place is not None)


def fit_alone(variants: Variants, samples: CalibrationSet) -> None:
    """Have each unit leave what changes the output least, per MAC that is saved, where it alone goes.

    Args:
        variants: Judges networks; its removals get the fits.
        samples: Stand-ins are fitted on a part of them, and judged on the rest.
    """
    removals = variants.removals
    places = fit_places(removals)
    found = fits_alone(removals.model, places, samples.fit) if places else {}
    units = {unit.name: unit for unit in removals.units}
    for name, fits in found.items():
        unit = units[name]
        price: dict[Fit | None, float] = {None: variants.held_out([unit])}
        for one in fits:
            removals.fits[name] = one
            saved = 1 - one.macs / unit.macs if unit.macs else 1.0
            price[one] = variants.held_out([unit]) / saved if saved > 0 else inf
        best = min(price, key=lambda one: price[one])
        removals.fits.pop(name)
        removals.fits |= {name: best} if best is not None else {}


def refit_together(variants: Variants, samples: CalibrationSet, units: Sequence[Unit]) -> dict[str, Fit]:
    """Return fits by unit, made anew behind each other where that brings the output nearer to the dense one's.

    Args:
        variants: Judges networks; its removals have what was fitted alone, and keep it.
        samples: As of `fit_alone`.
        units: All that goes.
    """
    removals, alone = variants.removals, variants.removals.fits
    edits = removals.edits(units, in_place=True)
    if len(units) < 2 or not tensors_of(edits, alone):
        return alone
    ridges = {name: one.ridge for name, one in alone.items()}
    together = alone | refit_in_order(removals.model, edits, samples.fit, ridges)
    before = variants.held_out(units)
    try:
        removals.fits = together
        return together if variants.held_out(units) <= before else alone
    finally:
        removals.fits = alone


def _place(removals: Removals, unit: GraphUnit) -> FitPlace | None:
    """Return where a stand-in of a unit can stand, and where the channels lie: along dimension 1 of a convolution's.

    Of a block the first layer says so, which reads the stream; of a branch the last one, whose output is added.
    """
    graph = removals.graph
    path = next((own for own, one in unit.modules.items() if one.leaves in ("zero", "zeros")), unit.name)
    if unit.kind == "block" and set(unit.modules) != {path}:
        return None
    number = next(number for number, call in enumerate(graph.calls) if call.path == path)
    shape = graph.calls[number].shape
    layers = [node for node in graph.nodes if node.index in unit.nodes and node.kind == "layer"]
    held = [p for own in unit.modules for p in get_module(removals.model, own).parameters()]
    if len(shape) not in (2, 3, 4, 5) or not layers or not any(p.ndim > 1 for p in held):
        return None
    dim = 1 if "convolution" in layers[0 if unit.kind == "block" else -1].operation else -1
    if not 0 < shape[dim] <= LARGEST:
        return None
    entry = path if unit.kind == "block" else _entry(graph, unit, number)
    return FitPlace(unit.name, unit.kind, path, dim, shape[dim], unit.modules, entry, prod(shape) // shape[dim])


def _entry(graph: ComputationGraph, unit: GraphUnit, number: int) -> str:
    """Return the module whose input reaches the last call of a branch once those before hand on what they read.

    Args:
        graph: Of the dense network.
        unit: The branch.
        number: Of the last call.

    Returns:
        Its path; empty where code between modules changes what they read.
    """
    edge = graph.entered[number]
    while edge is not None and edge.node in unit.nodes:
        inside = (n for n, call in enumerate(graph.calls) if call.path in unit.modules and edge.node in graph.inside[n])
        number = next(inside, -1)
        edge = graph.entered[number] if number >= 0 else None
    return graph.calls[number].path if edge is not None else ""
