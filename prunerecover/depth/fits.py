"""Fitted replacements of units: each alone, and, in the edits of a plan, fitted in order and tuned together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from prunerecover.calibration.places import Fit, family_places, numbered
from prunerecover.calibration.stand_in_fits import PlaceWeights, fits_alone
from prunerecover.depth.layers.fit_places import fit_places
from prunerecover.depth.layers.removals import Removals
from prunerecover.depth.search.objectives import OutputDivergence
from prunerecover.depth.variants import Variants
from prunerecover.display.progress import progress
from prunerecover.families.describe import is_supported
from prunerecover.library.blocks_anew import layers_before_blocks
from prunerecover.library.edits import Chosen, EditMaker
from prunerecover.library.tuning import tuned
from prunerecover.plan.edits import PARAMETERS, Edit, Refit, Remove
from prunerecover.plan.units import Unit
from prunerecover.session.session import Session

Finished = tuple[tuple[Edit, ...], dict[str, Tensor]]


def fit_again(session: Session, forms: Mapping[str, str], blocks: Sequence[str]) -> dict[str, Fit]:
    """Return fits of given forms for units of a supported family, fitted as in planning, by unit.

    Args:
        session: Network with the units, and samples.
        forms: Forms of replacements, by unit.
        blocks: Names of the blocks that go as well.
    """
    removals = Removals(session.model, session.traced, ("block", "attention", "mlp", "activation"))
    variants = Variants(removals, OutputDivergence(session.samples.held_out))
    fit_alone(session, variants, forms)
    chosen = variants.chosen([unit for unit in removals.units if unit.name in (*forms, *blocks)])
    found = tuned(session, variants.maker, chosen)
    return {name: fit.stand_in for name, (_, fit) in found.items() if fit.stand_in is not None}


def fit_alone(session: Session, variants: Variants, forms: Mapping[str, str] | None = None) -> None:
    """Give each unit the replacement of least output divergence, per MAC saved, of the unit as the only change.

    In supported families, where replacements of branches cost little, MACs of replacements do not count.

    Args:
        session: Network and samples: replacements are fitted on a part, and judged on the rest.
        variants: Judge of networks, whose removals get the fits, and whose maker gets the weights of rows.
        forms: Forms by unit, of the only fitted units; None: all units, and the best form of each.
    """
    removals, batches = variants.removals, session.samples.fit
    places = fit_places(removals)
    variants.maker.weights = PlaceWeights(removals.model, places, batches, session.seed)
    places = tuple(place for place in places if forms is None or place.unit in forms)
    found = fits_alone(removals.model, places, batches, variants.maker.weights) if places else {}
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


def finished(session: Session, variants: Variants, units: Sequence[Unit], *, fitted: bool, by_loss: bool) -> Finished:
    """Return the edits of a choice of units, and the edits' tensors by name.

    Args:
        session: Network and samples.
        variants: Judge of networks, with the replacements of single units.
        units: Removed units.
        fitted: Whether replacements are fitted again, in order, and tuned.
        by_loss: Whether units are chosen by a loss; layers before blocks do not learn the dense output then.
    """
    maker, chosen = variants.maker, variants.chosen(units)
    if fitted:
        chosen = tuned(session, maker, chosen)
        learns = is_supported(session.model) and session.output.comparable and not by_loss
        if learns and any(unit.kind == "block" for unit in units):
            return _with_layers_before(session, maker, chosen)
    return numbered(*maker.edits(chosen, in_place=False))


def _with_layers_before(session: Session, maker: EditMaker, chosen: Chosen) -> Finished:
    """Return edits with the layers before removed blocks fitted anew, if the output is nearer to the dense output."""
    edits, tensors = maker.edits(chosen, in_place=False)
    blocks = maker.gone_blocks(chosen)
    network = session.output.pruned(*maker.edits({name: one for name, one in chosen.items() if name not in blocks}))
    refits, values = list[Edit](), dict[str, Tensor]()
    for path, own in layers_before_blocks(session, network, blocks).items():
        keyed = {f"{path}.{name}": value for name, value in own.items()}
        refits.append(Refit(unit=path, tensors=tuple(keyed)))
        values |= keyed
    at = next((n for n, edit in enumerate(edits) if isinstance(edit, Remove) and edit.kind == "block"), len(edits))
    found = [numbered(edits, tensors), numbered([*edits[:at], *refits, *edits[at:]], {**tensors, **values})]
    return min(found, key=lambda one: session.output.divergence_of(session.output.pruned(*one))) if refits else found[0]
