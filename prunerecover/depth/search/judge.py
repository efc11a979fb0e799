"""Questions of a search about sets of units: the output divergence without them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from prunerecover.plan.units import Unit

Move = tuple[Unit, ...]


class Judge(Protocol):
    """Judge of the output's distance from the dense network's without some units.

    Attributes:
        refused: Reason why the last set that cannot go cannot, or "".
    """

    refused: str

    def scores(self, gone: Sequence[Unit], moves: Sequence[Move]) -> list[float]:
        """Return the divergence without the units that are gone and those of each move; infinite if they cannot go.

        Raises:
            ValueError: If a divergence is NaN.
        """

    def rough(self, moves: Sequence[Move]) -> list[float]:
        """Return about the divergence without the units of each move alone, from a part of the samples."""

    def divergence(self, units: Sequence[Unit]) -> float:
        """Return the divergence without these units."""
