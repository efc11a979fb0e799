"""Selection of the removed units, by importances and a budget.

Units go with the unit around: no attention is counted in a removed block, no activation in a removed MLP.
"""

from __future__ import annotations

from collections.abc import Sequence

from prunerecover.importance.registry import RegisteredImportance
from prunerecover.model.paths import is_within
from prunerecover.plan.kinds import TRAITS
from prunerecover.plan.units import Unit


def count_by_kind(units: Sequence[Unit]) -> dict[str, int]:
    """Return the number of units of each kind."""
    return {kind: sum(u.kind == kind for u in units) for kind in {u.kind for u in units}}


def cost_of(unit: Unit, cost: str) -> int:
    """Return the cost of a unit alone; MACs stand for latency."""
    return unit.params if cost == "params" else unit.macs


def check_comparable(units: Sequence[Unit], importance: RegisteredImportance) -> None:
    """Raise ValueError if a budget in cost would compare incomparable importances of several kinds."""
    kinds = sorted({u.kind for u in units})
    if len(kinds) > 1 and not importance.comparable:
        raise ValueError(
            f"Expected importance='output_divergence' for a share of cost over several kinds ({', '.join(kinds)}), but "
            f"got '{importance.name}': its values differ in scale between kinds and must not be compared. Use "
            "Budget(remove=...) with a number per kind, or ignore all kinds but one."
        )


def outermost(units: Sequence[Unit]) -> list[Unit]:
    """Leave out units inside further units of the list."""
    return [u for u in units if not any(is_inside(u, other) for other in units)]


def is_inside(unit: Unit, other: Unit) -> bool:
    """Whether `unit` goes when `other` goes: in a block, or the activation of an MLP."""
    held = unit.kind in TRAITS[other.kind].holds
    return held and any(is_within(unit.name, path) for path in other.targets)


def conflicting(unit: Unit, other: Unit) -> bool:
    """Whether two units cannot both go: a unit holds the second unit, or both change the same linears."""
    if {unit.kind, other.kind} == {"activation", "layer"}:
        activation, layer = sorted((unit, other), key=lambda one: one.kind)
        return layer.name in activation.targets
    return is_inside(unit, other) or is_inside(other, unit)
