"""States of a search over units, and steps from one to the next."""

from __future__ import annotations

from dataclasses import dataclass

from prunerecover.depth.search.judge import Move
from prunerecover.plan.units import names_of

SMALLEST = 1e-6  # of the missing part: a goal may be missed by less than any unit holds


@dataclass(frozen=True)
class State:
    """Removed units in order of choice, the divergence, and the part of the goal reached."""

    units: Move = ()
    divergence: float = 0.0
    reached: float = 0.0

    @property
    def cost(self) -> float:
        """The divergence, increased in proportion to any excess over the goal: an excess is a needless loss."""
        return self.divergence * max(self.reached, 1.0)

    @property
    def missing(self) -> float:
        """The missing part of the goal; a move gains nothing beyond."""
        return max(1 - self.reached, SMALLEST)


@dataclass(frozen=True)
class Step:
    """A move on top of a state.

    Attributes:
        state: State before the move.
        move: Units to remove.
        slope: Divergence added per part of the goal.
        price: Part of the goal reached by the move.
    """

    state: State
    move: Move
    slope: float
    price: float

    @property
    def projected(self) -> float:
        """The cost once the goal is met, at the same slope for the rest of the goal."""
        beyond = max(self.price - self.state.missing, 0.0)
        return (self.state.divergence + self.slope * self.state.missing) * (1 + beyond)

    @property
    def names(self) -> frozenset[str]:
        """Names of the units removed after the step."""
        return names_of((*self.state.units, *self.move))
