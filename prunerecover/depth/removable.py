"""Removable units of a network, less ignored units."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from prunerecover.depth.arguments import DepthConfig, not_ignored
from prunerecover.depth.layers.family_units import check_blocks_apart, explain_missing_activations
from prunerecover.depth.layers.removals import Removals
from prunerecover.families.describe import is_supported
from prunerecover.graph.trace import Traced
from prunerecover.model.arguments import check_patterns
from prunerecover.plan.kinds import FAMILY_KINDS
from prunerecover.plan.units import Unit
from prunerecover.sites.depth import no_unit, of_all_kinds


def units_that_may_go(
    model: nn.Module, traced: Traced, kinds: Sequence[str], config: DepthConfig
) -> tuple[Removals, tuple[Unit, ...]]:
    """Return the removals of a network, and the units less ignored units.

    Args:
        model: Unwrapped model in evaluation mode.
        traced: Trace of a sample.
        kinds: Kinds of the units.
        config: Arguments of planning, with the ignored units, and whether strided layers may go.

    Raises:
        ValueError: If the network has no unit of the kinds left, or a pattern matches none.
    """
    if is_supported(model):
        check_blocks_apart(model)
        if "activation" in kinds and set(kinds) != set(FAMILY_KINDS):
            explain_missing_activations(model)
    removals = Removals(model, traced, kinds, include_strided=config.include_strided)
    if config.ignore and removals.units:
        every = of_all_kinds(removals)
        check_patterns(config.ignore, [*(unit.name for unit in every.units), *every.refused], "units")
    units = not_ignored(removals.units, config.ignore)
    if removals.units and not units:
        raise ValueError(
            f"Expected units that may go, but all {len(removals.units)} of kind {', '.join(kinds)} match ignore="
            f"{list(config.ignore)}. Ignore fewer."
        )
    if not units:
        raise no_unit(removals, kinds)
    return removals, units
