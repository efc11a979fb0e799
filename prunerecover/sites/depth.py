"""Sites of depth: units that go as a whole, and reasons for the refusal of other parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torch import nn

from prunerecover.cost.macs import macs_by_module
from prunerecover.depth.layers.family_units import family_units
from prunerecover.depth.layers.removals import Removals
from prunerecover.families.describe import describe
from prunerecover.model.batches import ModelInputs
from prunerecover.model.checks import called_with, computed_in
from prunerecover.plan.kinds import DEPTH_KINDS
from prunerecover.plan.units import Unit
from prunerecover.refusal import Refusal


def units_by_parts(
    model: nn.Module, kinds: Sequence[str], example: ModelInputs | None
) -> tuple[tuple[Unit, ...], dict[str, str]]:
    """Return the units of a supported family, and refusals of activations and blocks by name.

    Args:
        model: Network without wrappers.
        kinds: Kinds of depth except layers.
        example: Batch for counting MACs; None leaves them 0.
    """
    macs: dict[str, int] = {}
    if example is not None:
        with called_with(model, "batches", example):
            macs = macs_by_module(model, example)
    refused = {
        block.mlp.path: f"its activation stays: {block.no_activation}; remove the attention or the MLP"
        for block in describe(model).blocks
        if "activation" in kinds and block.mlp is not None and block.feed_forward is None and block.no_activation
    }
    refused |= {block.path: block.stays for block in describe(model).blocks if block.stays and "block" in kinds}
    return family_units(model, kinds, macs), refused


def of_all_kinds(removals: Removals) -> Removals:
    """Return removals of the same network for units of every kind."""
    if set(removals.kinds) >= set(DEPTH_KINDS):
        return removals
    return Removals(removals.model, removals.traced, DEPTH_KINDS)


def no_unit(removals: Removals, kinds: Sequence[str]) -> Refusal:
    """Return the error for a network without removable units.

    Args:
        removals: Removals without units.
        kinds: Requested kinds.
    """
    first = [(path, *reason.partition("; ")[::2]) for path, reason in list(removals.refused.items())[:3]]
    why = "; ".join(f"'{path}': {cause}" for path, cause, _ in first)
    ways = "".join(f"{way[0].upper()}{way[1:].removesuffix('.')}. " for way in dict.fromkeys(w for *_, w in first if w))
    others = Counter(unit.kind for unit in of_all_kinds(removals).units)
    instead = f"It has others: {', '.join(f'{n} of kind {kind}' for kind, n in others.items())}. " if others else ""
    _, made_plain = computed_in(removals.model)
    plain = f"{made_plain} " if made_plain else ""
    return Refusal(
        f"{type(removals.model).__name__} to have units of kind {', '.join(kinds)} that may go",
        f"there is none{f' ({why})' if why else ''}",
        f"{plain}{ways}{instead}Channels, heads and neurons are narrowed by plan_width and WidthPrune.",
    )
