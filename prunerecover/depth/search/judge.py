"""Questions of a search about sets of units: the output divergence without them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from prunerecover.calibration.held_out import Cost
from prunerecover.plan.units import Unit

Move = tuple[Unit, ...]


class Judge(Protocol):
    """Tells how far the output is from the dense network's without some units.

    Attributes:
        together: How many moves are best judged in one call.
        refused: Why the last one that cannot go cannot, or "".
    """

    together: int
    refused: str

    def scores(self, gone: Sequence[Unit], moves: Sequence[Move]) -> list[float]:
        """Return the divergence without the units that are gone and those of each move; infinite if they cannot go.

        Raises:
            ValueError: If a divergence is NaN.
        """

    def races(self, moves: Sequence[Move]) -> bool:
        """Whether `race` is cheaper than `scores` for these moves."""

    def race(
        self, gone: Sequence[Unit], moves: Sequence[Move], cost: Cost, bounds: Sequence[float] | None = None
    ) -> list[float]:
        """Return what `scores` does; of moves that do not cost least it may be an estimate that costs more than those.

        Args:
            gone: Units that are gone.
            moves: On top of them.
            cost: Of a move, by its number and its divergence, in which it does not fall.
            bounds: What each move costs at least. A divergence may be infinite where that alone is too much.
        """

    def rough(self, moves: Sequence[Move]) -> list[float]:
        """Return about the divergence without the units of each move alone, from a part of the samples."""

    def divergence(self, units: Sequence[Unit]) -> float:
        """Return the divergence without these units."""

    def settle(self, units: Sequence[Unit]) -> None:
        """Fit what these units leave, as they are chosen: they may save a little more or less then."""
