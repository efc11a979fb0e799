"""The plan's edits of a choice of units, with replacements fitted in order and together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from prunerecover.calibration.places import numbered, tensors_of
from prunerecover.calibration.stand_in_fits import PlaceWeights
from prunerecover.depth.fits import fit_together
from prunerecover.depth.layers.standard import with_blocks_taken_out
from prunerecover.depth.layers.variants import Variants
from prunerecover.families.describe import is_supported
from prunerecover.library.blocks_anew import layers_before_blocks
from prunerecover.model.copies import share_copy
from prunerecover.plan.edits import Edit, Refit, Remove
from prunerecover.plan.units import Unit
from prunerecover.session.session import Session
from prunerecover.surgery.apply_edits import apply_edits

Finished = tuple[tuple[Edit, ...], dict[str, Tensor]]


def finished(
    session: Session, variants: Variants, chosen: Sequence[Unit], weights: PlaceWeights | None, *, by_loss: bool
) -> Finished:
    """Return the edits of a choice of units, and the edits' tensors by name.

    Args:
        session: Network and samples.
        variants: Judge of networks, with the replacements of single units.
        chosen: Removed units.
        weights: Weights of rows in fits; None: no value is fitted again.
        by_loss: Whether units are chosen by a loss; layers before blocks do not learn the dense output then.
    """
    removals = variants.removals
    alone = removals.fits
    fits = alone if weights is None else fit_together(variants, session.samples, weights, chosen)
    removals.fits = dict(fits)
    try:
        edits = with_blocks_taken_out(session.model, session.example, removals.edits(chosen))
        tensors = tensors_of(edits, fits)
        has_blocks = any(unit.kind == "block" for unit in chosen)
        if has_blocks and weights is not None and is_supported(session.model) and not by_loss:
            return _with_layers_before(session, variants, chosen, edits, tensors)
        return numbered(edits, tensors)
    finally:
        removals.fits = alone


def _with_layers_before(
    session: Session, variants: Variants, chosen: Sequence[Unit], edits: Sequence[Edit], tensors: Mapping[str, Tensor]
) -> Finished:
    """Return edits with the layers before removed blocks fitted anew, if the output is nearer to the dense output."""
    before, output, removals = numbered(edits, tensors), session.output, variants.removals
    if not output.comparable:
        return before
    network = share_copy(session.model).eval()
    others = removals.edits([unit for unit in chosen if unit.kind != "block"], in_place=True)
    apply_edits(network, others, tensors_of(others, removals.fits))
    refits, values = list[Edit](), dict[str, Tensor]()
    blocks = [unit.name for unit in chosen if unit.kind == "block"]
    for path, own in layers_before_blocks(session, network, blocks).items():
        keyed = {f"{path}.{name}": value for name, value in own.items()}
        refits.append(Refit(unit=path, tensors=tuple(keyed)))
        values |= keyed
    at = next((n for n, edit in enumerate(edits) if isinstance(edit, Remove) and edit.kind == "block"), len(edits))
    after = numbered([*edits[:at], *refits, *edits[at:]], {**tensors, **values})
    found = [output.divergence_of(output.pruned(*one)) for one in (before, after)] if refits else [0.0, 0.0]
    return after if found[1] < found[0] else before
