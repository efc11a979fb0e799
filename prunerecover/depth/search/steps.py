"""States of a search over units, and steps from one to the next."""

from __future__ import annotations

from dataclasses import dataclass

from prunerecover.depth.search.judge import Move
from prunerecover.plan.units import names_of

SMALLEST = 1e-6  # of what is missing: a goal may be missed by less than any unit holds


@dataclass(frozen=True)
class State:
    """Units that are gone, in the order in which they were chosen, the divergence, and the part of the goal reached."""

    units: Move = ()
    divergence: float = 0.0
    reached: float = 0.0

    @property
    def cost(self) -> float:
        """The divergence; what goes beyond the goal counts as much as the rest did, for it is lost without need."""
        return self.divergence * max(self.reached, 1.0)

    @property
    def missing(self) -> float:
        """The part of the goal that is left; what a move brings beyond that is worth nothing."""
        return max(1 - self.reached, SMALLEST)


@dataclass(frozen=True)
class Step:
    """A move on top of a state.

    Attributes:
        state: What is gone.
        move: What goes.
        slope: Divergence added per part of the goal.
        price: The part of the goal that goes with the move.
    """

    state: State
    move: Move
    slope: float
    price: float

    @property
    def projected(self) -> float:
        """The cost once the goal is met, if everything else cost as much per part of it."""
        beyond = max(self.price - self.state.missing, 0.0)
        return (self.state.divergence + self.slope * self.state.missing) * (1 + beyond)

    @property
    def names(self) -> frozenset[str]:
        """What is gone after it."""
        return names_of((*self.state.units, *self.move))
