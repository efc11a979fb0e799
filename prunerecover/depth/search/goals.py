"""Goals of a search: the amount to remove, counted in units of each kind or measured as a share of a cost.

Units go with the unit around: no attention is counted in a removed block, no activation in a removed MLP.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from prunerecover.importance.registry import RegisteredImportance
from prunerecover.model.paths import is_within
from prunerecover.plan.kinds import TRAITS
from prunerecover.plan.units import Unit
from prunerecover.refusal import Refusal


def free(units: Sequence[Unit], chosen: Sequence[Unit]) -> list[Unit]:
    """Return the units neither chosen nor in conflict with a chosen unit.

    Args:
        units: All units.
        chosen: Chosen units.
    """
    return [unit for unit in units if not any(unit == other or conflicting(unit, other) for other in chosen)]


@dataclass(frozen=True)
class Counted:
    """Number of units of each kind; containers go first, for small units must not use up the places of containers."""

    units: Sequence[Unit]
    wanted: Mapping[str, int]

    @property
    def total(self) -> int:
        """Number of units to remove."""
        return sum(self.wanted.values())

    def units_to_score(self) -> list[Unit]:
        """Return the units of the wanted kinds."""
        return [unit for unit in self.units if self.wanted.get(unit.kind)]

    def describe_missing(self, chosen: Sequence[Unit]) -> str:
        """Return the number of units left to take, by kind."""
        return str(self.missing(chosen))

    def missing(self, chosen: Sequence[Unit]) -> dict[str, int]:
        """Return the number of units left to take, by kind, without complete kinds."""
        left = {kind: n - sum(unit.kind == kind for unit in chosen) for kind, n in self.wanted.items()}
        return {kind: n for kind, n in left.items() if n > 0}

    def open(self, chosen: Sequence[Unit]) -> list[Unit]:
        """Return the free units of the wanted kinds that hold most further kinds."""
        missing = self.missing(chosen)
        may_go = free(self.units, chosen)
        left = [unit for unit in may_go if unit.kind in missing]
        most = max((len(TRAITS[unit.kind].holds) for unit in left), default=0)
        return [unit for unit in left if len(TRAITS[unit.kind].holds) == most]

    def price(self, units: Sequence[Unit]) -> float:
        """All units count the same."""
        return len(units) / max(self.total, 1)

    def reached(self, chosen: Sequence[Unit]) -> float:
        """Return the taken part of the wanted units; no kind makes up for another."""
        return 1.0 - sum(self.missing(chosen).values()) / max(self.total, 1)


@dataclass(frozen=True)
class Share:
    """A share of a cost, measured without the removed units.

    Attributes:
        units: Units to choose from.
        share: Share of the cost to remove; 0: nothing.
        saved: Function that measures the share that goes with units.
        alone: Function that measures or estimates the share that goes with units of a dense network. None: `saved`.
        most_blocks: Largest number of removed blocks; None: all.
    """

    units: Sequence[Unit]
    share: float
    saved: Callable[[Sequence[Unit]], float]
    alone: Callable[[Sequence[Unit]], float] | None = None
    most_blocks: int | None = None

    @property
    def total(self) -> None:
        """None: the number of units is unknown beforehand."""
        return

    def units_to_score(self) -> Sequence[Unit]:
        """Return all units."""
        return self.units

    def open(self, chosen: Sequence[Unit]) -> list[Unit]:
        """Return all remaining units."""
        most = len(self.units) if self.most_blocks is None else self.most_blocks
        full = sum(unit.kind == "block" for unit in chosen) >= most
        return [unit for unit in free(self.units, chosen) if not (full and unit.kind == "block")]

    def price(self, units: Sequence[Unit]) -> float:
        """Return the part of the share saved by the units alone."""
        return (self.alone or self.saved)(units) / self.share if self.share else 1.0

    def reached(self, chosen: Sequence[Unit]) -> float:
        """Return the removed part of the share."""
        if not self.share:
            return 1.0
        return self.saved(chosen) / self.share if chosen else 0.0

    def describe_missing(self, chosen: Sequence[Unit]) -> str:
        """Return the share of the cost left to remove."""
        return f"{self.share * (1 - self.reached(chosen)):.1%} of the cost"


Goal = Counted | Share


def not_enough(goal: Goal, chosen: Sequence[Unit], reason: str = "") -> Refusal:
    """Return the error for a goal that cannot be met.

    Args:
        goal: Goal of the search.
        chosen: Units chosen so far.
        reason: Reason why the last refused unit cannot go, ending in a space, or "".
    """
    return Refusal(
        f"enough units outside the other removed ones for {goal.describe_missing(chosen)} more",
        f"none is left that can go. {reason}".strip().removesuffix("."),
        "Lower the budget, allow more kinds, or ignore fewer units.",
    )


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
