"""Costs saved by units of depth, less the costs of the replacements.

A clock cannot resolve a single unit, and each measurement takes as long as many samples through the network. Units of a
kind differ only in size, so the latency saved by half of a kind is measured once, on few samples, beside the MACs saved
by the same units; any set then saves the sum over its kinds. The set found is measured as a whole at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial

from prunerecover.depth.layers.pruned_graph import NotRemovable
from prunerecover.depth.layers.removals import Removals
from prunerecover.plan.units import Unit, names_of
from prunerecover.session.session import Session
from prunerecover.store.search_store import SearchStore

LEAST = 0.1  # least share of the latency saved by a kind, per share of the MACs: clocks of tiny networks are noisy


class UnitCosts:
    """Costs of sets of units in a network, each measured once.

    Args:
        session: Network and samples.
        removals: Units of the network, with replacements.
        units: Removable units.
        store: Store of the search, for a clock would measure other times on resuming.
    """

    def __init__(self, session: Session, removals: Removals, units: Sequence[Unit], store: SearchStore) -> None:
        self.session, self.removals, self.units, self.store = session, removals, units, store
        self._saved: dict[tuple[str, float | None, frozenset[str]], float] = {}

    def saved(self, units: Sequence[Unit], cost: str, wanted: float | None = None) -> float:
        """Return the share of a cost saved by units; 0 for units that cannot go together.

        Args:
            units: Units, none inside another.
            cost: Name of the cost.
            wanted: Share to compare a measured latency with; see `DenseCost.removed_share`.
        """
        key = cost, wanted if cost == "latency" else None, names_of(units)
        if key not in self._saved:
            try:
                with self.removals.trying(units):
                    self._saved[key] = self.session.cost(cost).removed_share(self.removals.edits(units), wanted=wanted)
            except NotRemovable:  # widths that cannot be reconciled, or an error of the network's own code
                self._saved[key] = 0.0
        return self._saved[key]

    def of_half(self, kind: str, cost: str) -> float:
        """Return the share of a cost saved by half of the units of a kind; latency on few samples."""
        dense, units = self.session.cost(cost), self._some_of(kind)
        dense = dense.on_few if cost == "latency" else dense
        return dense.removed_share(self.removals.edits(units)) if units else 0.0

    def estimated_latency(self, units: Sequence[Unit]) -> float:
        """Return the estimated share of the latency saved by units."""
        by_kind: dict[str, list[Unit]] = {}
        for unit in units:
            by_kind.setdefault(unit.kind, []).append(unit)
        return sum(self._latency_per_macs[kind] * self.saved(own, "macs") for kind, own in by_kind.items())

    @cached_property
    def _latency_per_macs(self) -> dict[str, float]:
        """Share of the latency per share of the MACs, by kind; 0 where half of a kind saves no MACs."""
        found = dict[str, float]()
        for kind in dict.fromkeys(unit.kind for unit in self.units):
            macs = self.of_half(kind, "macs")
            clock = partial(self.of_half, kind, "latency")
            found[kind] = max(self.store.result("latency", (kind,), clock) / macs, LEAST) if macs > 0 else 0.0
        return found

    def _some_of(self, kind: str) -> list[Unit]:
        """Return half of the units of a kind that save MACs alone, or fewer units if the half saves none together.

        Widths around several layers may not follow; the last resort is the unit with the largest saving.
        """
        saved = {unit: self.saved([unit], "macs") for unit in self.units if unit.kind == kind}
        own, step = [unit for unit in saved if saved[unit] > 0], 2
        while step < len(own):
            if self.saved(own[::step], "macs") > 0:
                return own[::step]
            step *= 2
        return sorted(own, key=saved.__getitem__)[-1:]
