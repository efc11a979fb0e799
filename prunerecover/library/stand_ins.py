"""Replacements of units known from the graph alone, fitted again in order behind all other changes of a choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import nn

from prunerecover.calibration.stand_in_fits import refit_in_order
from prunerecover.library.edits import Chosen, EditMaker
from prunerecover.model.batches import ModelInputs
from prunerecover.recovery.batchnorm import normalised_by_batch


def fitted_in_order(
    model: nn.Module, maker: EditMaker, chosen: Chosen, batches: Sequence[ModelInputs], *, narrowed: bool
) -> Chosen:
    """Return a choice with replacements from the graph fitted on the pruned stream, towards the dense outputs.

    Args:
        model: Dense network, in evaluation mode.
        maker: Maker of the edits of variants.
        chosen: Choice, with each replacement fitted as the only change.
        batches: Calibration samples on the model's device.
        narrowed: Whether replacements on narrowed streams are fitted, too, and keep the present widths.
    """
    sized, kept = maker.sized(chosen)
    alone = {site: fit.stand_in for site, (_, fit) in sized.items() if fit.stand_in is not None}
    if not alone.keys() - ({} if narrowed else kept).keys():
        return chosen
    edits, tensors = maker.edits(sized)
    ridges = {site: stand_in.ridge for site, stand_in in alone.items()}
    by_batch = maker.network is not None and normalised_by_batch(model, batches)
    fits = refit_in_order(model, edits, batches, ridges, tensors=tensors, kept=kept, by_batch=by_batch)
    found = dict(sized if narrowed else chosen)
    for site, stand_in in fits.items():
        if narrowed or site not in kept:
            found[site] = found[site][0], replace(found[site][1], stand_in=stand_in)
    return found
