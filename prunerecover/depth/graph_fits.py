"""Fitted stand-ins of units of any network: their places, the units that they serve, and their last fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import isfinite, prod

from torch import Tensor, nn

from prunerecover.calibration.learning import (
    EPOCHS,
    SAMPLES,
    WORSE,
    Held,
    best_epoch,
    gradients_of_output,
    judged_output,
)
from prunerecover.calibration.moments import LARGEST
from prunerecover.calibration.stand_in_fits import Fit, FitPlace, fits_alone, refit_in_order, tensors_of
from prunerecover.depth.layers.pruned_graph import NotRemovable
from prunerecover.depth.layers.removals import Removals
from prunerecover.depth.layers.variants import Variants
from prunerecover.divergence.kept_outputs import KeptOutputs
from prunerecover.families.transformers_layers import read_stacks
from prunerecover.graph.branches import GraphUnit
from prunerecover.graph.computation_graph import ComputationGraph
from prunerecover.model.batches import CalibrationSet, of_few_samples
from prunerecover.model.checks import is_differentiable
from prunerecover.model.copies import share_copy
from prunerecover.model.evaluation import uncompiled
from prunerecover.model.paths import get_module
from prunerecover.plan.edits import Bypass, Patch
from prunerecover.plan.units import Unit
from prunerecover.surgery.apply_edits import apply_edits

FASTER = 3  # than stand-ins in a family learn: ResNet-20, ResNet-56 at 33% of the MACs; at 10 the first epoch is worse


def fit_places(removals: Removals) -> tuple[FitPlace, ...]:
    """Return where something fitted can stand for units, in order of execution.

    Not for blocks in a list that transformers' configs count: taken out of it, they leave a standard model.
    """
    counted = {block.path for stack in read_stacks(removals.model) for block in stack.blocks}
    on_graph = {unit.name: unit for unit in removals.units_on_graph()}
    found = (
        _place(removals, on_graph[unit.name]) if unit.name in on_graph else _place_of_one(removals, unit)
        for unit in removals.units
        if unit.name not in counted
    )
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
            saved = 1 - one.macs / unit.macs if unit.macs else 1.0
            if saved > 0:
                removals.fits[name] = one
                price[one] = variants.held_out([unit]) / saved
        best = min(price, key=lambda one: price[one])
        removals.fits.pop(name, None)
        removals.fits |= {name: best} if best is not None else {}


def fit_together(variants: Variants, samples: CalibrationSet, units: Sequence[Unit]) -> dict[str, Fit]:
    """Return fits by unit for all that goes: each made anew behind the others, then tuned together on the output.

    Either is left out where the output on held-out samples is further from the dense one's.

    Args:
        variants: Judges networks; its removals have what was fitted alone, and keep it.
        samples: As of `fit_alone`.
        units: All that goes.
    """
    removals, alone = variants.removals, variants.removals.fits
    edits = removals.edits(units, in_place=True)
    if not tensors_of(edits, alone):
        return alone
    found = alone
    try:
        if len(units) > 1:
            before = variants.held_out(units)
            ridges = {name: one.ridge for name, one in alone.items()}
            removals.fits = alone | refit_in_order(removals.model, edits, samples.fit, ridges)
            found = removals.fits if variants.held_out(units) <= before else alone
        return _tuned(variants, samples, units, found)
    finally:
        removals.fits = alone


def _tuned(
    variants: Variants, samples: CalibrationSet, units: Sequence[Unit], fits: Mapping[str, Fit]
) -> dict[str, Fit]:
    """Return fits tuned on the output; the removals hold others afterwards."""
    removals, batches = variants.removals, of_few_samples(samples.fit, SAMPLES)
    removals.fits = dict(fits)
    edits = removals.edits(units, in_place=True)
    network = share_copy(removals.model)
    apply_edits(network, edits, tensors_of(edits, fits))
    network.eval()
    left = {edit.unit for edit in edits if isinstance(edit, Bypass) and edit.tensors}
    held = {
        (unit, name): Held.of(get_module(network, fits[unit].place.path), name, value, EPOCHS * len(batches) / FASTER)
        for unit in left
        for name, value in fits[unit].values.items()
    }
    if not is_differentiable(network) or not isfinite(variants.held_out(units)):
        return dict(fits)
    dense = KeptOutputs(lambda number: judged_output(removals.model, batches[number]))
    sources = [one.source for one in held.values()]

    def gradients(number: int) -> tuple[Tensor, ...]:
        with uncompiled(recurrent=True):
            return gradients_of_output(network, batches[number], dense.of(number), sources)

    def with_values(values: Iterable[Tensor]) -> dict[str, Fit]:
        own: dict[str, dict[str, Tensor]] = {unit: {} for unit in left}
        for (unit, name), value in zip(held, values, strict=True):
            own[unit][name] = value.detach().clone()
        return dict(fits) | {unit: replace(fits[unit], values=values) for unit, values in own.items()}

    def divergence() -> float:
        removals.fits = with_values(one.value for one in held.values())
        return variants.held_out(units)

    _, found = best_epoch(list(held.values()), EPOCHS, len(batches), gradients, divergence, worse=WORSE)
    return with_values(found) if found else dict(fits)


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
    inside = {n for own, call in zip(graph.inside, graph.calls, strict=True) if call.path in unit.modules for n in own}
    trains = any(graph.nodes[n].weights for n in unit.nodes - inside if n < min(graph.inside[number]))
    where = (unit.name, unit.kind, path, path, dim, shape[dim], unit.modules)
    return FitPlace(*where, entry, prod(shape) // shape[dim], trains)


def _place_of_one(removals: Removals, unit: Unit) -> FitPlace | None:
    """Return where a stand-in of a layer or an activation can stand, if nothing else changes with it."""
    graph = removals.graph
    try:
        edits = [edit for edit in removals.edits([unit], in_place=True) if not isinstance(edit, Patch)]
    except NotRemovable:
        return None
    (node,) = graph.by_module.get(unit.name, (None,))[:1]
    if node is None or len(edits) != 1 or not isinstance(edits[0], Bypass) or node.given != node.shape:
        return None
    dim = 1 if "convolution" in node.operation else -1
    if edits[0].unit != unit.name or len(node.shape) not in (2, 3, 4, 5) or not 0 < node.shape[dim] <= LARGEST:
        return None
    modules, channels = edits[0].modules, node.shape[dim]
    if _is_shared(removals.model, modules):
        return None
    gives = max(modules, key=lambda path: graph.first_in.get(path, -1))
    where = (unit.name, unit.kind, unit.name, gives, dim, channels, modules)
    return FitPlace(*where, unit.name, prod(node.shape) // channels)


def _is_shared(model: nn.Module, paths: Iterable[str]) -> bool:
    """Whether a module of some paths has others, too, as an activation may that all layers of a network call."""
    held = Counter(id(module) for _, module in model.named_modules(remove_duplicate=False))
    return any(held[id(get_module(model, path))] > 1 for path in paths)


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
