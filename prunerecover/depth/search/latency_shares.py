"""Latency saved by units, estimated from the saved MACs.

A clock cannot resolve a single unit, and each measurement takes as long as many samples through the network. Units of a
kind differ only in size, so the saving of half of a kind is measured once, on few samples, beside the MACs saved by the
same units; any set then saves the sum over its kinds. The set found is measured as a whole at the end and, if the
budget is missed, searched for anew with a corrected share.
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

LEAST = 0.1  # least share of the latency saved by a kind, per share of the MACs: clocks of tiny networks are noisy
ByKind = Callable[[str, str], float]  # the share of a cost saved by half of a kind: kind, cost
Saved = Callable[[Sequence[Unit]], float]
Found = TypeVar("Found")


class LatencyShares:
    """Estimates of shares of the latency.

    Args:
        kinds: Kinds of the units.
        half: Function that measures the share of "macs" or "latency" saved by half of the units of a kind.
        macs: Function that counts the share of the MACs saved by units, less their replacements.
        store: Store of the search, for a clock would measure other times on resuming. None: nothing is kept.
    """

    def __init__(self, kinds: Sequence[str], half: ByKind, macs: Saved, store: SearchStore | None = None) -> None:
        self.kinds, self._half, self._macs = tuple(dict.fromkeys(kinds)), half, macs
        self.store = store or SearchStore()

    @cached_property
    def per_macs(self) -> dict[str, float]:
        """Share of the latency per share of the MACs, by kind; 0 where half of a kind saves no MACs."""
        macs = {kind: self._half(kind, "macs") for kind in self.kinds}
        return {k: max(self._clocked(k) / macs[k], LEAST) if macs[k] > 0 else 0.0 for k in macs}

    def of(self, units: Sequence[Unit]) -> float:
        """Return the estimated share of the latency saved by units."""
        by_kind: dict[str, list[Unit]] = {}
        for unit in units:
            by_kind.setdefault(unit.kind, []).append(unit)
        return sum(self.per_macs[kind] * self._macs(own) for kind, own in by_kind.items())

    def _clocked(self, kind: str) -> float:
        return self.store.result("latency", (kind,), partial(self._half, kind, "latency"))


def searched_for_latency(
    goal: Share, shares: LatencyShares, searched: Callable[[Share], Found], measured: Callable[[Found], float]
) -> Found:
    """Return the result of a search by estimated shares of the latency, measured at the end.

    Args:
        goal: Share of the latency, less the tolerance of clocks, and removable units.
        shares: Estimates.
        searched: Function that searches for a result that meets a goal.
        measured: Function that returns the share saved by a result.
    """
    smallest = min((share for unit in goal.units if (share := shares.of([unit])) > 0), default=0.0)
    found, _ = met_share(
        {"latency": Wanted(goal.share, above=smallest + CLOCKS)},
        lambda asked: searched(replace(goal, share=asked["latency"], saved=shares.of, alone=None)),
        lambda found: {"latency": shares.store.result("latency", (), partial(measured, found))},
    )
    return found
