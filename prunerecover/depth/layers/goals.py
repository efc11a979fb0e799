"""Goals of a search: how much has to go, counted in units of each kind or measured as a share of a cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from prunerecover.depth.selection import conflicting
from prunerecover.plan.kinds import TRAITS
from prunerecover.plan.units import Unit


class Goal(Protocol):
    """How much has to go."""

    def open(self, chosen: Sequence[Unit]) -> list[Unit]:
        """Return the units that may go next."""

    def price(self, unit: Unit) -> float:
        """Return what a unit brings the goal nearer by, above 0."""

    def met(self, chosen: Sequence[Unit]) -> bool:
        """Whether enough is gone."""


def free(units: Sequence[Unit], chosen: Sequence[Unit], *, one_block_stays: bool = False) -> list[Unit]:
    """Return the units that are neither chosen, nor inside or around what is chosen.

    Args:
        units: All.
        chosen: Of them.
        one_block_stays: Whether the last block cannot go: containers of a supported family must not be empty.
    """
    blocks = sum(unit.kind == "block" for unit in units)
    last = one_block_stays and sum(unit.kind == "block" for unit in chosen) >= blocks - 1
    return [
        unit
        for unit in units
        if not any(unit == other or conflicting(unit, other) for other in chosen)
        and not (unit.kind == "block" and last)
    ]


@dataclass(frozen=True)
class Counted:
    """So many units of each kind; what holds others goes first, for small units must not use up its places."""

    units: Sequence[Unit]
    wanted: Mapping[str, int]
    one_block_stays: bool = False

    def open(self, chosen: Sequence[Unit]) -> list[Unit]:
        """Return the units of the kinds that are still wanted and hold most others."""
        missing = {kind for kind, n in self.wanted.items() if sum(u.kind == kind for u in chosen) < n}
        may_go = free(self.units, chosen, one_block_stays=self.one_block_stays)
        left = [unit for unit in may_go if unit.kind in missing]
        most = max((len(TRAITS[unit.kind].holds) for unit in left), default=0)
        return [unit for unit in left if len(TRAITS[unit.kind].holds) == most]

    def price(self, unit: Unit) -> float:
        """All units count the same."""
        return 1.0

    def met(self, chosen: Sequence[Unit]) -> bool:
        """Whether no kind is missing a unit."""
        return all(sum(u.kind == kind for u in chosen) >= n for kind, n in self.wanted.items())


@dataclass(frozen=True)
class Share:
    """A share of a cost, as it is once the units are out."""

    units: Sequence[Unit]
    share: float
    saved: Callable[[Sequence[Unit]], float]
    one_block_stays: bool = False
    _alone: dict[str, float] = field(default_factory=dict)

    def open(self, chosen: Sequence[Unit]) -> list[Unit]:
        """Return the units that save something."""
        may_go = free(self.units, chosen, one_block_stays=self.one_block_stays)
        return [unit for unit in may_go if self.price(unit) > 0]

    def price(self, unit: Unit) -> float:
        """Return the share that goes with the unit alone."""
        if unit.name not in self._alone:
            self._alone[unit.name] = self.saved([unit])
        return self._alone[unit.name]

    def met(self, chosen: Sequence[Unit]) -> bool:
        """Whether the share is reached; measured only once the units' own shares come near it."""
        expected = sum(map(self.price, chosen))
        return expected >= 0.8 * self.share and self.saved(chosen) >= self.share
