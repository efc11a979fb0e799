"""Fitted replacements of units: each alone, and all replacements of a set of units together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite

import torch
from torch import Tensor

from prunerecover.calibration.learning import tuned_parameters
from prunerecover.calibration.places import Fit, family_places, tensors_of
from prunerecover.calibration.samples import CalibrationSet
from prunerecover.calibration.stand_in_fits import PlaceWeights, fits_alone, refit_in_order
from prunerecover.calibration.steps import steps_of
from prunerecover.depth.layers.fit_places import fit_places
from prunerecover.depth.layers.removals import Removals
from prunerecover.depth.layers.variants import Variants
from prunerecover.depth.search.objectives import OutputDivergence
from prunerecover.display.progress import progress
from prunerecover.families.describe import is_supported
from prunerecover.model.checks import is_differentiable
from prunerecover.model.copies import share_copy
from prunerecover.model.paths import get_module
from prunerecover.plan.edits import PARAMETERS, Bypass, Replace
from prunerecover.plan.units import Unit
from prunerecover.session.session import Session
from prunerecover.surgery.apply_edits import apply_edits


def weights_of(removals: Removals, samples: CalibrationSet, seed: int) -> PlaceWeights:
    """Return the weights of rows at the places of fitted replacements.

    Args:
        removals: Units of the network.
        samples: Calibration samples.
        seed: Seed of the labels drawn from the model's predictions.
    """
    return PlaceWeights(removals.model, fit_places(removals), samples.fit, seed)


def fit_again(session: Session, forms: Mapping[str, str], blocks: Sequence[str]) -> dict[str, Fit]:
    """Return fits of given forms for units of a supported family, fitted as in planning, by unit.

    Args:
        session: Network with the units, and samples.
        forms: Forms of replacements, by unit.
        blocks: Names of the blocks that go as well.
    """
    kinds, samples = ("block", "attention", "mlp", "activation"), session.samples
    removals = Removals(session.model, session.traced, kinds)
    variants = Variants(removals, OutputDivergence(samples, held_out=True))
    weights = weights_of(removals, samples, session.seed)
    fit_alone(variants, samples, weights, forms)
    units = [unit for unit in removals.units if unit.name in (*forms, *blocks)]
    return fit_together(variants, samples, weights, units)


def fit_alone(
    variants: Variants, samples: CalibrationSet, weights: PlaceWeights, forms: Mapping[str, str] | None = None
) -> None:
    """Give each unit the replacement of least output divergence, per MAC saved, of the unit as the only change.

    In supported families, where replacements of branches cost little, MACs of replacements do not count.

    Args:
        variants: Judge of networks, whose removals get the fits.
        samples: Samples: replacements are fitted on a part, and judged on the rest.
        weights: Weights of rows.
        forms: Forms by unit, of the only fitted units; None: all units, and the best form of each.
    """
    removals = variants.removals
    places = [place for place in fit_places(removals) if forms is None or place.unit in forms]
    found = fits_alone(removals.model, places, samples.fit, weights) if places else {}
    units = {unit.name: unit for unit in removals.units}
    with progress("choosing what units leave", len(found)) as advance:
        for name, fits in found.items():
            unit = units[name]
            price: dict[Fit | None, float] = {} if forms else {None: variants.held_out([unit])}
            for one in (fit for fit in fits if forms is None or fit.leaves == forms[name]):
                saved = 1 - one.macs / unit.macs if unit.macs else 1.0
                if saved > 0:
                    removals.fits[name] = one
                    price[one] = variants.held_out([unit]) / saved
            best = min(price, key=lambda one: price[one])
            removals.fits.pop(name, None)
            removals.fits |= {name: best} if best is not None else {}
            advance()


def leave_by_name(removals: Removals, replace: str) -> None:
    """Give units of a supported family the named replacement, where different from the plain replacement of the kind.

    Args:
        removals: Units of the network, which get the replacements.
        replace: "zero" or "identity". With a zero activation, the feed-forward adds its output bias alone.
    """
    for unit in removals.units if is_supported(removals.model) else ():
        (place, *_), found = family_places(removals.model, unit.name) or (None,), None
        if place is not None and place.kind == "activation" and replace == "zero":
            zeros = {name: torch.zeros(place.channels) for name in PARAMETERS["slope_bias"]}
            found = Fit(place, "slope_bias", zeros, 0)
        elif place is not None and place.kind != "activation" and replace == "identity":
            found = Fit(place, "identity", {}, 0)
        removals.fits |= {} if found is None else {unit.name: found}


def fit_together(
    variants: Variants, samples: CalibrationSet, weights: PlaceWeights, units: Sequence[Unit]
) -> dict[str, Fit]:
    """Return the fits of removed units: each made anew behind earlier replacements, then all tuned on the output.

    Either step is undone where the output on held-out samples is further from the dense output.

    Args:
        variants: Judge of networks, whose removals hold and keep the fits of single units.
        samples: Samples, as in `fit_alone`.
        weights: Weights, as in `fit_alone`.
        units: All removed units.
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
            removals.fits = alone | refit_in_order(removals.model, edits, samples.fit, ridges, weights)
            found = removals.fits if variants.held_out(units) <= before else alone
        return _tuned(variants, samples, units, found)
    finally:
        removals.fits = alone


def _tuned(
    variants: Variants, samples: CalibrationSet, units: Sequence[Unit], fits: Mapping[str, Fit]
) -> dict[str, Fit]:
    """Return fits tuned on the output; the fits of the removals change."""
    removals = variants.removals
    removals.fits = dict(fits)
    edits = removals.edits(units, in_place=True)
    network = share_copy(removals.model)
    apply_edits(network, edits, tensors_of(edits, fits))
    network.eval()
    left = {edit.unit for edit in edits if isinstance(edit, Bypass | Replace) and edit.tensors}
    values = {(unit, name): value for unit in left for name, value in fits[unit].values.items()}
    if not is_differentiable(network) or not isfinite(variants.held_out(units)):
        return dict(fits)
    steps = steps_of(removals.model, samples.fit, samples.further)
    if not steps.enough:
        return dict(fits)
    modules = {unit: get_module(network, fits[unit].place.path) for unit in left}
    parameters = {(unit, name): modules[unit].get_parameter(name) for unit, name in values}

    def with_values(present: Mapping[tuple[str, str], Tensor]) -> dict[str, Fit]:
        own: dict[str, dict[str, Tensor]] = {unit: {} for unit in left}
        for (unit, name), value in present.items():
            own[unit][name] = value.detach().clone()
        return dict(fits) | {unit: replace(fits[unit], values=values) for unit, values in own.items()}

    def divergence() -> float:
        return variants.held_out_of(network)

    best = tuned_parameters(network, parameters, values, steps, divergence, lambda key: key[1] == "bias")
    return with_values(best) if best else dict(fits)
