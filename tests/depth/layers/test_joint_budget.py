"""The joint search does not overshoot a budget for the sake of one large unit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

from prunerecover.depth.layers.goals import Share
from prunerecover.depth.layers.joint import JointSearch
from prunerecover.depth.layers.variants import Variants
from prunerecover.plan.units import Unit

PRICES = {"stem": 0.3, **{f"layer{i}": 0.05 for i in range(8)}}


@dataclass
class Saturating:
    """Each layer adds to the divergence, and no set goes beyond that of the stem, which ruins the network alone."""

    seen: list[tuple[str, ...]] = field(default_factory=list)

    def divergence(self, units: Sequence[Unit]) -> float:
        if any(unit.name == "stem" for unit in units):
            return 6.0
        return min(1.4 * len(units), 6.0)

    def rebase(self, units: Sequence[Unit]) -> None:
        self.seen.append(tuple(unit.name for unit in units))


def test_what_a_unit_saves_beyond_the_budget_is_worth_nothing() -> None:
    units = [Unit(name, "layer", (name,), 1, 1) for name in PRICES]
    goal = Share(units, 0.2, lambda chosen: sum(PRICES[unit.name] for unit in chosen))
    chosen = JointSearch(cast(Variants, Saturating()), goal).run()
    assert {unit.name[:5] for unit in chosen} == {"layer"}
    assert len(chosen) == 4
