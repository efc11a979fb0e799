"""The plan's edits of a choice of units, with replacements fitted in order and tuned together."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from prunerecover.calibration.places import numbered
from prunerecover.depth.variants import Variants
from prunerecover.families.describe import is_supported
from prunerecover.library.blocks_anew import layers_before_blocks
from prunerecover.library.edits import Chosen, EditMaker
from prunerecover.library.tuning import tuned
from prunerecover.plan.edits import Edit, Refit, Remove
from prunerecover.plan.units import Unit
from prunerecover.session.session import Session

Finished = tuple[tuple[Edit, ...], dict[str, Tensor]]


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
