"""Variants of a network without some units, judged by output divergence or by a loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from prunerecover.depth.layers.pruned_graph import NotRemovable
from prunerecover.depth.layers.removals import Removals
from prunerecover.depth.search.objectives import Objective
from prunerecover.display.progress import progress
from prunerecover.divergence.outputs import OtherShape
from prunerecover.importance.registry import check_finite
from prunerecover.library.edits import Chosen, EditMaker, Fit
from prunerecover.library.scoring import Scorer
from prunerecover.library.variants import LibrarySite, Variant
from prunerecover.plan.units import Unit, names_of
from prunerecover.store.search_store import SearchStore


class Variants:
    """Judge of sets of units, by the network without the units, beside the dense network.

    Args:
        removals: Units of the network.
        objective: Measure of networks; "divergence" below is its value, also of a loss.
        store: Store of the search; None: no results are kept.

    Attributes:
        maker: Maker of the edits of units.
        refused: Reason why the last refused set cannot go, or "".
    """

    def __init__(self, removals: Removals, objective: Objective, store: SearchStore | None = None) -> None:
        self.removals, self.objective, self.refused = removals, objective, ""
        self.store = store or SearchStore()
        sites = {unit.name: LibrarySite(unit.name, unit.kind, unit, (), ()) for unit in removals.units}
        self.maker = EditMaker(sites, None, removals)
        self._scorer = Scorer(removals.model, removals.graph, self.maker, objective).begin()
        self._known: dict[frozenset[str], float] = {frozenset(): 0.0}
        self._base = frozenset[str]()

    def chosen(self, units: Sequence[Unit]) -> Chosen:
        """Return removed units, in order, with their replacements, as a choice of a library."""
        found = {}
        for unit in units:
            fit = self.removals.fits.get(unit.name)
            leaves = "zero" if fit is None else fit.leaves
            found[unit.name] = Variant(leaves, leaves=leaves), Fit(stand_in=fit)
        return found

    def divergence(self, units: Sequence[Unit], base: Sequence[Unit] | None = None) -> float:
        """Return the objective's value for the network without some units, measured once: higher is worse.

        Args:
            units: Removed units.
            base: Removed units of the base, whose beginning is shared; None: the present base.

        Raises:
            NotRemovable: If the widths around a layer cannot be reconciled.
        """
        key = names_of(units)
        if key not in self._known:
            measure = partial(self._measured, units, self.objective.all, base)
            self._known[key] = self.store.result("divergence", sorted(key), measure)
        return self._known[key]

    def held_out(self, units: Sequence[Unit]) -> float:
        """Return the divergence without some units on held-out samples, which no replacement is fitted to.

        The divergence is infinite if the units cannot go, or if the output changes shape, as detections may.
        """
        try:
            return self._measured(units, self.objective.few, None)
        except (NotRemovable, OtherShape):
            return math.inf

    def rough(self, units: Sequence[Unit]) -> list[float]:
        """Return the rough divergence without each unit alone, on a few samples; infinite for refused units."""

        def judged(unit: Unit) -> float:
            measure = partial(self._measured, (unit,), self.objective.few, ())
            return self.store.result("rough", (unit.name,), measure)

        return self._each(units, judged)

    def scores(self, gone: Sequence[Unit], units: Sequence[Unit]) -> list[float]:
        """Return the divergence without removed units and each unit; infinite for refused units.

        Raises:
            ValueError: If a divergence is NaN.
        """
        return self._each(units, lambda unit: self.divergence((*gone, unit), gone))

    def _rebase(self, units: Sequence[Unit]) -> None:
        """Make the network without some units the base, so that later variants share its beginning."""
        if names_of(units) != self._base:
            with self.removals.trying(units):
                self._scorer.rebase(self.chosen(units))
            self._base = names_of(units)

    def _measured(self, units: Sequence[Unit], numbers: Sequence[int], base: Sequence[Unit] | None) -> float:
        """Judge the network without some units on some batches.

        Args:
            units: Removed units.
            numbers: Numbers of the batches.
            base: Removed units of the base; None: the present base.
        """
        if base is not None:
            self._rebase(base)
        with self.removals.trying(units):
            return self._scorer.measured(self.chosen(units), numbers)

    def _each(self, units: Sequence[Unit], score: Callable[[Unit], float]) -> list[float]:
        """Score units; infinite for refused units, and NaN raises an error."""
        found = []
        with progress("ranking units", len(units)) as advance:
            for unit in units:
                try:
                    found.append(score(unit))
                except NotRemovable as error:
                    self.refused = f"{error} "
                    found.append(math.inf)
                advance()
        named = zip(units, found, strict=True)
        check_finite({unit.name: one for unit, one in named if one != math.inf}, self.objective.name)
        return found
