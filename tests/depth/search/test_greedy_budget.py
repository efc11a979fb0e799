"""The greedy search does not overshoot a budget for the sake of one large unit."""

from __future__ import annotations

from collections.abc import Sequence

from prunerecover.depth.search.goals import Share
from prunerecover.depth.search.greedy import GreedySearch
from prunerecover.plan.units import Unit, names_of

PRICES = {"stem": 0.3, **{f"layer{i}": 0.05 for i in range(8)}}


class Saturating:
    """Each layer adds to the divergence, and no set goes beyond that of the stem, which ruins the network alone."""

    refused = ""

    def scores(self, gone: Sequence[Unit], units: Sequence[Unit]) -> list[float]:
        return [6.0 if "stem" in names_of((*gone, unit)) else min(1.4 * (len(gone) + 1), 6.0) for unit in units]

    def rough(self, units: Sequence[Unit]) -> list[float]:
        return self.scores((), units)


def test_what_a_unit_saves_beyond_the_budget_is_worth_nothing() -> None:
    units = [Unit(name, "layer", (name,), 1, 1) for name in PRICES]
    goal = Share(units, 0.2, lambda chosen: sum(PRICES[unit.name] for unit in chosen))
    chosen = GreedySearch(Saturating(), goal).run()
    assert {unit.name[:5] for unit in chosen} == {"layer"}
    assert len(chosen) == 4
