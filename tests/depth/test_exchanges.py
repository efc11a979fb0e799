"""What a search chose one by one is exchanged where another set changes the output less."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from prunerecover.calibration.held_out import Cost
from prunerecover.depth.search.goals import Counted, Goal, Share
from prunerecover.depth.search.joint import JointSearch
from prunerecover.plan.units import Unit

ALONE = {"a": 1.0, "b": 1.1, "c": 1.2, "d": 9.0}
PAIRS = {"ab": 5.0, "ac": 4.0, "bc": 2.4}
UNITS = [Unit(name, "layer", (name,), 1, 1) for name in ALONE]


class Interacting:
    """The unit that costs least alone does not fit the others."""

    together, refused = 1, ""

    def __init__(self, racing: bool) -> None:
        self.racing = racing

    def divergence(self, units: Sequence[Unit]) -> float:
        names = "".join(sorted(unit.name for unit in units))
        return ALONE.get(names, PAIRS.get(names, 9.0))

    def scores(self, gone: Sequence[Unit], moves: Sequence[tuple[Unit, ...]]) -> list[float]:
        return [self.divergence((*gone, *move)) for move in moves]

    def rough(self, moves: Sequence[tuple[Unit, ...]]) -> list[float]:
        return self.scores((), moves)

    def races(self, moves: Sequence[tuple[Unit, ...]]) -> bool:
        return self.racing

    def race(
        self,
        gone: Sequence[Unit],
        moves: Sequence[tuple[Unit, ...]],
        cost: Cost,
        bounds: Sequence[float] | None = None,
    ) -> list[float]:
        """All but the cheapest are known to be too much, and nothing else."""
        scores = self.scores(gone, moves)
        best = min(range(len(moves)), key=lambda number: cost(number, scores[number]), default=0)
        return [score if number == best else math.inf for number, score in enumerate(scores)]

    def settle(self, units: Sequence[Unit]) -> None:
        pass


def found(goal: Goal, search: str, racing: bool = False) -> str:
    chosen = JointSearch(Interacting(racing), goal, search).run()
    return "".join(sorted(unit.name for unit in chosen))


@pytest.mark.parametrize("racing", [False, True])
def test_a_share_is_exchanged_whatever_grows_it(racing: bool) -> None:
    half = Share(UNITS, 0.5, lambda chosen: 0.25 * len(chosen))
    assert found(half, "greedy", racing) == "bc"
    assert found(half, "joint", racing) == "bc"


def test_counted_units_are_exchanged_by_name() -> None:
    assert found(Counted(UNITS, {"layer": 2}), "greedy") == "ac"
    assert found(Counted(UNITS, {"layer": 2}), "joint") == "bc"
