"""Judge of a search over sets of units: the output divergence without the units."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from prunerecover.plan.units import Unit

Move = tuple[Unit, ...]


class Judge(Protocol):
    """Judge of the output's distance from the dense output without some units.

    Attributes:
        refused: Reason why the last refused set cannot go, or "".
    """

    refused: str

    def scores(self, gone: Sequence[Unit], moves: Sequence[Move]) -> list[float]:
        """Return the divergence without removed units and the units of each move; infinite for refused moves.

        Raises:
            ValueError: If a divergence is NaN.
        """

    def rough(self, moves: Sequence[Move]) -> list[float]:
        """Return the rough divergence without the units of each move alone, from a part of the samples."""

    def divergence(self, units: Sequence[Unit]) -> float:
        """Return the divergence without some units."""
