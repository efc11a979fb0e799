"""Expected length of a search in depth, before it begins: in passes of all samples through the dense network.

A rough estimate from searches of DeiT-Tiny and ResNet-56, by the numbers of units and of removed units.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from prunerecover.depth.search.goals import count_by_kind
from prunerecover.plan.budget import Budget
from prunerecover.plan.units import Unit

ALONE = 1 / 6  # of a pass: a unit on held-out samples, from its place on
STEP = 1.0  # passes for each removed unit of the greedy search
TUNED = 10.0  # passes to tune the replacements on the output


def expected_passes(units: Sequence[Unit], budget: Budget, search: str) -> float:
    """Return the estimated number of passes of a search.

    Args:
        units: Removable units.
        budget: Budget.
        search: Name of the search.
    """
    counts = count_by_kind(units)
    going = {kind: counts.get(kind, 0) for kind in budget.kinds(list(counts))}
    scored = sum(going.values()) * ALONE
    step = scored if search in ("exact", "rounds") else STEP if search == "greedy" else 0.0
    return scored + step * _number(going, budget) + TUNED


def _number(available: Mapping[str, int], budget: Budget) -> float:
    """Return the estimated number of removed units, at equal costs of all units."""
    if budget.remove is not None:
        return sum(budget.remove.values())
    if budget.ratio is not None:
        return sum(share * available.get(kind, 0) for kind, share in budget.ratio.items())
    assert budget.share is not None, "a budget is in units or a share"
    return budget.share[1] * sum(available.values())
