"""Latency that goes with units, estimated from the MACs that go with them.

A clock tells no single unit apart, and each look at it takes as long as many samples through the network. Units of one
kind are alike but for their size, so what half of a kind saves is measured once, on few samples, beside the MACs that
go with the same units; any set then saves the sum over its kinds. What is found so is measured as a whole at the end
and, if it misses the budget, searched for anew with a corrected share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import TypeVar

from prunerecover.cost.met_share import Wanted, met_share
from prunerecover.depth.search.goals import Share
from prunerecover.plan.units import Unit
from prunerecover.store.search_store import SearchStore
from prunerecover.surgery.saved_cost import CLOCKS

LEAST = 0.1  # of its share of the MACs, that a kind saves of the latency: what a clock says of tiny networks is noise
ByKind = Callable[[str, str], float]  # the share of a cost that goes with half of a kind: kind, cost
Saved = Callable[[Sequence[Unit]], float]
Found = TypeVar("Found")


class LatencyShares:
    """Estimates shares of the latency.

    Args:
        kinds: Of the units.
        half: Measures the share of "macs" or "latency" that goes with half of the units of a kind.
        macs: Counts the share of the MACs that goes with units, less what they leave.
        store: Of the search: what a clock says would be another thing when it goes on. None: nothing is kept.
    """

    def __init__(self, kinds: Sequence[str], half: ByKind, macs: Saved, store: SearchStore | None = None) -> None:
        self.kinds, self._half, self._macs = tuple(dict.fromkeys(kinds)), half, macs
        self.store = store or SearchStore()

    @cached_property
    def per_macs(self) -> dict[str, float]:
        """By kind, the share of the latency that goes with a share of the MACs; 0 where no MACs go with half of it."""
        macs = {kind: self._half(kind, "macs") for kind in self.kinds}
        return {k: max(self._clocked(k) / macs[k], LEAST) if macs[k] > 0 else 0.0 for k in macs}

    def of(self, units: Sequence[Unit]) -> float:
        """Return about the share of the latency that goes with units."""
        by_kind: dict[str, list[Unit]] = {}
        for unit in units:
            by_kind.setdefault(unit.kind, []).append(unit)
        return sum(self.per_macs[kind] * self._macs(own) for kind, own in by_kind.items())

    def _clocked(self, kind: str) -> float:
        return self.store.result("latency", (kind,), partial(self._half, kind, "latency"))


def searched_for_latency(
    goal: Share, shares: LatencyShares, searched: Callable[[Share], Found], measured: Callable[[Found], float]
) -> Found:
    """Return what is found by estimated shares of the latency; what it saves is measured.

    Args:
        goal: A share of the latency, less what clocks do not tell apart, and units that can go.
        shares: Estimates.
        searched: Searches for what meets a goal.
        measured: Returns the share that goes with what was found.
    """
    smallest = min((share for unit in goal.units if (share := shares.of([unit])) > 0), default=0.0)
    found, _ = met_share(
        {"latency": Wanted(goal.share, above=smallest + CLOCKS)},
        lambda asked: searched(replace(goal, share=asked["latency"], saved=shares.of, alone=None)),
        lambda found: {"latency": shares.store.result("latency", (), partial(measured, found))},
    )
    return found
