"""The joint search does not overshoot a budget for the sake of one large unit."""

from __future__ import annotations

from collections.abc import Sequence

from prunerecover.depth.search.goals import Share
from prunerecover.depth.search.joint import JointSearch
from prunerecover.plan.units import Unit

PRICES = {"stem": 0.3, **{f"layer{i}": 0.05 for i in range(8)}}


class Saturating:
    """Each layer adds to the divergence, and no set goes beyond that of the stem, which ruins the network alone."""

    together, refused = 1, ""

    def scores(self, gone: Sequence[Unit], moves: Sequence[tuple[Unit, ...]]) -> list[float]:
        return [self.divergence((*gone, *move)) for move in moves]

    def rough(self, moves: Sequence[tuple[Unit, ...]]) -> list[float]:
        return self.scores((), moves)

    def divergence(self, units: Sequence[Unit]) -> float:
        if any(unit.name == "stem" for unit in units):
            return 6.0
        return min(1.4 * len(units), 6.0)

    def settle(self, units: Sequence[Unit]) -> None:
        pass


def test_what_a_unit_saves_beyond_the_budget_is_worth_nothing() -> None:
    units = [Unit(name, "layer", (name,), 1, 1) for name in PRICES]
    goal = Share(units, 0.2, lambda chosen: sum(PRICES[unit.name] for unit in chosen))
    chosen = JointSearch(Saturating(), goal).run()
    assert {unit.name[:5] for unit in chosen} == {"layer"}
    assert len(chosen) == 4
