"""Goals of a search: how much has to go, counted in units of each kind or measured as a share of a cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from prunerecover.depth.search.selection import conflicting
from prunerecover.plan.kinds import TRAITS
from prunerecover.plan.units import Unit
from prunerecover.refusal import Refusal


class Goal(Protocol):
    """How much has to go."""

    @property
    def total(self) -> int | None:
        """How many units have to go; None if that is not known."""

    def units_to_score(self) -> Sequence[Unit]:
        """Return the units that may ever go."""

    def open(self, chosen: Sequence[Unit]) -> list[Unit]:
        """Return the units that may go next."""

    def fits(self, chosen: Sequence[Unit], move: Sequence[Unit]) -> bool:
        """Whether units that may go one by one are not too many together."""

    def price(self, units: Sequence[Unit]) -> float:
        """Return about which part of the goal some units reach by themselves; 0 if nothing is known to go with them."""

    def describe_missing(self, chosen: Sequence[Unit]) -> str:
        """Say what is left to remove."""

    def reached(self, chosen: Sequence[Unit]) -> float:
        """Return which part of the goal the chosen units reach together: 1 or more if enough is gone."""


def not_enough(goal: Goal, chosen: Sequence[Unit], reason: str = "") -> Refusal:
    """Return what says that a goal cannot be met.

    Args:
        goal: How much has to go.
        chosen: What goes already.
        reason: Why the last one that cannot go cannot, ending in a space, or "".
    """
    return Refusal(
        f"enough units outside the other removed ones for {goal.describe_missing(chosen)} more",
        f"none is left that can go. {reason}".strip().removesuffix("."),
        "Lower the budget, allow more kinds, or ignore fewer units.",
    )


def free(units: Sequence[Unit], chosen: Sequence[Unit]) -> list[Unit]:
    """Return the units that are neither chosen, nor inside or around what is chosen.

    Args:
        units: All.
        chosen: Of them.
    """
    return [unit for unit in units if not any(unit == other or conflicting(unit, other) for other in chosen)]


@dataclass(frozen=True)
class Counted:
    """So many units of each kind; what holds others goes first, for small units must not use up its places."""

    units: Sequence[Unit]
    wanted: Mapping[str, int]

    @property
    def total(self) -> int:
        """How many units have to go."""
        return sum(self.wanted.values())

    def units_to_score(self) -> list[Unit]:
        """Return the units of the kinds that are wanted."""
        return [unit for unit in self.units if self.wanted.get(unit.kind)]

    def describe_missing(self, chosen: Sequence[Unit]) -> str:
        """Return how many units of each kind are left to take."""
        return str(self.missing(chosen))

    def missing(self, chosen: Sequence[Unit]) -> dict[str, int]:
        """Return how many units of each kind are left to take, of those kinds that miss some."""
        left = {kind: n - sum(unit.kind == kind for unit in chosen) for kind, n in self.wanted.items()}
        return {kind: n for kind, n in left.items() if n > 0}

    def open(self, chosen: Sequence[Unit]) -> list[Unit]:
        """Return the units of the kinds that are still wanted and hold most others."""
        missing = self.missing(chosen)
        may_go = free(self.units, chosen)
        left = [unit for unit in may_go if unit.kind in missing]
        most = max((len(TRAITS[unit.kind].holds) for unit in left), default=0)
        return [unit for unit in left if len(TRAITS[unit.kind].holds) == most]

    def fits(self, chosen: Sequence[Unit], move: Sequence[Unit]) -> bool:
        """Whether so many units of their kinds are wanted."""
        missing = self.missing(chosen)
        return all(n <= missing.get(kind, 0) for kind, n in Counter(unit.kind for unit in move).items())

    def price(self, units: Sequence[Unit]) -> float:
        """All units count the same."""
        return len(units) / max(self.total, 1)

    def reached(self, chosen: Sequence[Unit]) -> float:
        """Return the part of the units that are taken; no kind makes up for another."""
        return 1.0 - sum(self.missing(chosen).values()) / max(self.total, 1)


@dataclass(frozen=True)
class Share:
    """A share of a cost, as it is once the units are out.

    Attributes:
        units: To choose from.
        share: Of the cost that has to go; nothing goes for 0.
        saved: Measures the share that goes with some units.
        alone: Measures, or estimates, the share that goes with some units of a dense network. None: as `saved`.
        most_blocks: How many blocks may go; None: all.
    """

    units: Sequence[Unit]
    share: float
    saved: Callable[[Sequence[Unit]], float]
    alone: Callable[[Sequence[Unit]], float] | None = None
    most_blocks: int | None = None

    @property
    def total(self) -> None:
        """Nobody knows beforehand how many units it takes."""
        return

    def units_to_score(self) -> Sequence[Unit]:
        """Return all units."""
        return self.units

    def open(self, chosen: Sequence[Unit]) -> list[Unit]:
        """Return all units that are left."""
        most = len(self.units) if self.most_blocks is None else self.most_blocks
        full = sum(unit.kind == "block" for unit in chosen) >= most
        return [unit for unit in free(self.units, chosen) if not (full and unit.kind == "block")]

    def fits(self, chosen: Sequence[Unit], move: Sequence[Unit]) -> bool:
        """No number is too large."""
        return True

    def price(self, units: Sequence[Unit]) -> float:
        """Return the part of the share that goes with the units alone."""
        return (self.alone or self.saved)(units) / self.share if self.share else 1.0

    def reached(self, chosen: Sequence[Unit]) -> float:
        """Return the part of the share that is gone."""
        if not self.share:
            return 1.0
        return self.saved(chosen) / self.share if chosen else 0.0

    def describe_missing(self, chosen: Sequence[Unit]) -> str:
        """Return the share of the cost that is left to remove."""
        return f"{self.share * (1 - self.reached(chosen)):.1%} of the cost"
