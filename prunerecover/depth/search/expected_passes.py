"""Expected length of a search in depth, before it begins: in passes of all samples through the dense network.

Rough: what searches of DeiT-Tiny and ResNet-56 took, by the number of units and of those that go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from prunerecover.depth.search.selection import count_by_kind
from prunerecover.plan.budget import Budget
from prunerecover.plan.units import Unit

ALONE = 1 / 6  # of a pass: one unit on held-out samples, from where it stands
STEP = {"greedy": 1.0, "joint": 4.0}  # passes for each unit that goes
TUNED = 10.0  # what units leave, on the output


def expected_passes(units: Sequence[Unit], budget: Budget, search: str) -> float:
    """Return about how many passes a search takes.

    Args:
        units: That may go.
        budget: How much goes.
        search: Name of the search.
    """
    counts = count_by_kind(units)
    going = {kind: counts.get(kind, 0) for kind in budget.kinds(list(counts))}
    scored = sum(going.values()) * ALONE
    step = scored if search in ("exact", "rounds") else STEP.get(search, 0.0)
    return scored + step * _number(going, budget) + TUNED


def _number(available: Mapping[str, int], budget: Budget) -> float:
    """Return about how many units go: all are taken to cost the same."""
    if budget.remove is not None:
        return sum(budget.remove.values())
    if budget.ratio is not None:
        return sum(share * available.get(kind, 0) for kind, share in budget.ratio.items())
    assert budget.share is not None, "a budget is in units or a share"
    return budget.share[1] * sum(available.values())
