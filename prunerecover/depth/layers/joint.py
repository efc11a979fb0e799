"""Joint search: units are chosen with each other in view, not one by one.

Greedy first: each further unit is the one whose removal, on top of what is gone, costs least divergence per saved cost.
Then exchanges: a chosen unit stays, and the best other one goes in its place, as long as that brings the output nearer
to the dense network's. Some units must go together (a thesis on fine-grained depth pruning, Delft 2025, found layers
whose removal alone ruins a network and in company does not), so importance is never taken as known once and for all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from prunerecover.depth.layers.goals import Goal
from prunerecover.depth.layers.pruned_graph import NotRemovable
from prunerecover.depth.layers.variants import Variants
from prunerecover.display.progress import progress
from prunerecover.plan.units import Unit

EXCHANGED = 6  # units that are tried in the place of a chosen one
ROUNDS = 3  # of exchanges


@dataclass
class JointSearch:
    """Searches for the units that go.

    Attributes:
        variants: Judge sets of units.
        goal: How much has to go.
        exchange: Whether exchanges follow.
        first: Divergence of each unit alone, by name, once the search has begun; infinite for what cannot go.
    """

    variants: Variants
    goal: Goal
    exchange: bool = True
    first: dict[str, float] = field(default_factory=dict)
    _rate: dict[str, float] = field(default_factory=dict)
    _refused: str = ""

    def run(self) -> list[Unit]:
        """Return the units that go, in the order in which they were chosen.

        Raises:
            ValueError: If the goal cannot be met.
        """
        chosen: list[Unit] = []
        with progress("choosing units together") as advance:
            while not self.goal.met(chosen):
                best = self._next(chosen)
                if best is None:
                    raise ValueError(
                        f"Expected enough units for the budget, but after {len(chosen)} units none is left that can "
                        f"go. {self._refused}Lower the budget, allow more kinds, or ignore fewer units."
                    )
                chosen = self._without_needless([*chosen, best])
                self.variants.rebase(chosen)
                advance()
            if self.exchange:
                for _ in range(ROUNDS):
                    better = self._exchanged(chosen)
                    if better == chosen:
                        break
                    chosen = better
        return chosen

    def _next(self, chosen: Sequence[Unit]) -> Unit | None:
        """Return the unit of least divergence per price; only those that may be the best are judged again."""
        candidates = self.goal.open(chosen)
        now = self._divergence(chosen)
        fresh: dict[str, float] = {}
        waiting = sorted(candidates, key=lambda unit: self._rate.get(unit.name, -1.0))
        for unit in waiting:
            if fresh and unit.name in self._rate and self._rate[unit.name] > min(fresh.values()):
                break
            found = self._divergence([*chosen, unit])
            if not chosen:
                self.first[unit.name] = found
            fresh[unit.name] = max(found - now, 0.0) / self.goal.price(unit) if math.isfinite(found) else math.inf
        self._rate |= fresh
        able = [unit for unit in candidates if math.isfinite(fresh.get(unit.name, math.inf))]
        return min(able, key=lambda unit: fresh[unit.name], default=None)

    def _without_needless(self, chosen: list[Unit]) -> list[Unit]:
        """Give back what is not needed to meet the goal, the costliest first."""
        while self.goal.met(chosen) and len(chosen) > 1:
            spare = [rest for i in range(len(chosen) - 1) if self.goal.met(rest := [*chosen[:i], *chosen[i + 1 :]])]
            if not spare:
                break
            chosen = min(spare, key=self._divergence)
        return chosen

    def _exchanged(self, chosen: list[Unit]) -> list[Unit]:
        """Try another unit in the place of each, and return the best set."""
        best = chosen
        for unit in sorted(chosen, key=lambda own: -self._rate.get(own.name, 0.0)):
            if unit not in best:
                continue
            rest = [own for own in best if own is not unit]
            others = [own for own in self.goal.open(rest) if own is not unit and self.goal.met([*rest, own])]
            others.sort(key=lambda own: self._rate.get(own.name, math.inf))
            tried = [best, *([*rest, own] for own in others[:EXCHANGED])]
            better = min(tried, key=self._divergence)
            if self._divergence(better) < self._divergence(best):
                best = self._without_needless(better)
        return best

    def _divergence(self, units: Sequence[Unit]) -> float:
        try:
            return self.variants.divergence(units)
        except NotRemovable as error:
            self._refused = f"{error} "
            return math.inf


def in_groups(pattern: Sequence[Callable[[Unit], bool]], ranked: Sequence[Unit], goal: Goal) -> list[Unit]:
    """Take units in turn by a pattern until the goal is met: two that are no attention, then an attention, and so on.

    Args:
        pattern: Which units each place takes.
        ranked: The least important first.
        goal: How much has to go.

    Raises:
        ValueError: If the goal cannot be met.
    """
    chosen: list[Unit] = []
    while not goal.met(chosen):
        before = len(chosen)
        for takes in pattern:
            if goal.met(chosen):
                break
            open_ = goal.open(chosen)
            chosen += [unit for unit in ranked if unit in open_ and takes(unit)][:1]
        if len(chosen) == before:
            raise ValueError("Expected enough units for the budget, but none is left that can go. Lower the budget.")
    return chosen
