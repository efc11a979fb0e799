"""Walk through a network: variants fitted in order of execution, on the pruned stream towards the dense stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from prunerecover.calibration.front_to_back import FrontToBack
from prunerecover.calibration.token_weights import TokenWeights
from prunerecover.display.progress import progress
from prunerecover.divergence.kept_outputs import MOST_KEPT
from prunerecover.library.edits import Chosen, EditMaker, Fit
from prunerecover.library.moments import ROWS, StationMoments
from prunerecover.library.stations import Seen, Station, seen_at
from prunerecover.library.variants import Variant
from prunerecover.model.batches import ModelInputs
from prunerecover.model.copies import share_copy
from prunerecover.model.paths import get_module
from prunerecover.surgery.apply_edits import apply_edits

FitOf = Callable[[str, Station, Variant, StationMoments], Fit]


class Walks:
    """Walks through one network on the same samples.

    Args:
        model: Dense network, in evaluation mode.
        maker: Maker of the edits of variants.
        stations: Stations in order of execution.
        batches: Calibration samples on the model's device.
        fit_of: Function that fits a variant, given the moments of its station.
        weights: Weights of rows at each station; empty: equal weights.

    Attributes:
        passes: Approximate number of passes over the samples so far.
    """

    def __init__(
        self,
        model: nn.Module,
        maker: EditMaker,
        stations: Sequence[Station],
        batches: Sequence[ModelInputs],
        fit_of: FitOf,
        weights: Sequence[TokenWeights] = (),
    ) -> None:
        self.weights = weights
        self.model, self.maker, self.stations, self.batches, self.fit_of = model, maker, stations, batches, fit_of
        self.passes = 0.0
        self._dense: dict[tuple[str, int], Tensor] = {}  # streams of the dense network behind stations
        self._room = MOST_KEPT

    @torch.no_grad()
    def walk(self, chosen: Chosen) -> tuple[dict[str, tuple[Variant, Fit]], dict[str, StationMoments]]:
        """Fit a choice again, in order.

        Args:
            chosen: Variants by site. Fits at sites without a station stay unchanged.

        Returns:
            The choice with new fits, and the moments of every station with its own site unchanged, behind the earlier
            choices.
        """
        network, at = share_copy(self.model).eval(), {station.site for station in self.stations}
        found = {site: own for site, own in chosen.items() if site not in at}
        apply_edits(network, *self.maker.edits(found))
        passes = FrontToBack(network, self.batches)
        dense = FrontToBack(self.model, self.batches) if not self._complete else None
        moments: dict[str, StationMoments] = {}
        with progress("fitting in order", len(self.stations)) as advance:
            for station in self.stations:
                own = self._moments(station, passes, dense) if _is_there(network, station) else None
                if own is not None:
                    moments[station.site] = own
                if station.site in chosen:
                    variant, before = chosen[station.site]
                    fit = before if own is None else self.fit_of(station.site, station, variant, own)
                    found[station.site] = variant, fit
                if station.site in chosen and _is_there(network, station):
                    apply_edits(network, *self.maker.edits({station.site: found[station.site]}))
                    passes.renew()
                advance()
        self.passes += 1.0 + (dense is not None)
        return {site: found[site] for site in chosen}, moments

    @property
    def _complete(self) -> bool:
        return len(self._dense) == len(self.stations) * len(self.batches)

    def _moments(self, station: Station, passes: FrontToBack, dense: FrontToBack | None) -> StationMoments | None:
        """Return the moments of a station; None if no batch reaches the station as in the dense network."""
        found: StationMoments | None = None
        for number, inputs in enumerate(self.batches):
            now, total = seen_at(passes, station, inputs), self._total(station, number, dense)
            if now is None or total is None or now.total.shape != total.shape:
                continue
            if found is None:
                rows = sum(batch.n_samples for batch in self.batches) * len(now.read) // max(1, inputs.n_samples)
                found = StationMoments(max(1, rows // (ROWS * now.read.shape[-1])))
            weight = self.weights[self.stations.index(station)].of(0, number) if self.weights else None
            found.add(now, total, None if weight is None else weight.flatten())
        return found

    def _total(self, station: Station, number: int, dense: FrontToBack | None) -> Tensor | None:
        """Return the dense stream behind a station."""
        key = station.site, number
        if key in self._dense:
            return self._dense[key]
        assert dense is not None, "streams are kept for all batches, or none"
        seen: Seen | None = seen_at(dense, station, self.batches[number])
        if seen is None:
            return None
        self._room -= seen.total.nbytes
        if self._room >= 0:
            self._dense[key] = seen.total
        return seen.total


def _is_there(network: nn.Module, station: Station) -> bool:
    """Whether a station still exists: a block around the station may be removed."""
    try:
        return bool(get_module(network, station.entry) and get_module(network, station.reader))
    except ValueError:
        return False
