"""Walk through a network: variants fitted in order of execution, on the pruned stream towards the dense stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import nn

from prunerecover.calibration.front_to_back import FrontToBack
from prunerecover.calibration.stand_in_fits import refit_in_order
from prunerecover.calibration.token_weights import TokenWeights
from prunerecover.display.progress import progress
from prunerecover.library.blocks import Blocks
from prunerecover.library.edits import Chosen, EditMaker, Fit
from prunerecover.library.moments import ROWS, StationMoments, Sums
from prunerecover.library.stations import Station, seen_at
from prunerecover.library.streams import DenseStreams
from prunerecover.library.variants import Variant
from prunerecover.model.batches import ModelInputs
from prunerecover.model.copies import share_copy
from prunerecover.model.evaluation import unless_failing
from prunerecover.model.paths import get_module
from prunerecover.recovery.batchnorm import normalisation
from prunerecover.store.ranks import PARTS, SearchEnded, Spread, by_itself
from prunerecover.surgery.apply_edits import apply_edits

Moments = Mapping[tuple[int, int], StationMoments]  # by numbers of a station, and of the station whose stream is wanted
FitOf = Callable[[str, Station, Variant, StationMoments], Fit]


class Walks:
    """Walks through one network on the same samples.

    Args:
        model: Dense network, in evaluation mode.
        maker: Maker of the edits of variants.
        stations: Stations in order of execution.
        blocks: Blocks between stations.
        batches: Calibration samples on the model's device.
        fit_of: Function that fits a variant at the site's station; None: no station has a site, and only the layers
            before removed blocks are fitted.
        weights: Weights of rows at each station; empty: equal weights.
        start: Network in which walks begin, such as a copy with other edits; None: the dense network.
        spread: Sharing of sums among ranks, in walks of all ranks; see `Spread`.
    """

    def __init__(
        self,
        model: nn.Module,
        maker: EditMaker,
        stations: Sequence[Station],
        blocks: Blocks,
        batches: Sequence[ModelInputs],
        fit_of: FitOf | None = None,
        weights: Sequence[TokenWeights] = (),
        start: nn.Module | None = None,
        spread: Spread = by_itself,
    ) -> None:
        self.model, self.start = model, model if start is None else start
        self.maker, self.stations, self.blocks = maker, stations, blocks
        self.batches, self.fit_of, self.weights = batches, fit_of, weights
        self.streams, self.spread = DenseStreams(model, stations, batches), spread

    @torch.no_grad()
    def walk(
        self, chosen: Chosen, *, together: bool = False
    ) -> tuple[dict[str, tuple[Variant, Fit]], dict[tuple[int, int], StationMoments]]:
        """Fit a choice again, in order; a network that fails stays as it is, without moments.

        Args:
            chosen: Variants by site. Fits at sites without a station stay unchanged, but for replacements of units
                known from the graph alone, which are fitted behind all others.
            together: Whether all ranks take this walk now, and share the batches.

        Returns:
            The choice with new fits, and the moments of every station with its own site unchanged, behind the earlier
            choices, towards each stream that the station may have to lead to.
        """
        found = unless_failing(lambda: self._walked(chosen, self.spread if together else by_itself), SearchEnded)
        return (dict(chosen), {}) if found is None else found

    def fitted_at(self, number: int, chosen: Chosen, moments: Moments) -> Chosen:
        """Return the part of a choice fitted at a station: the site's variant, or else a removed block behind.

        Args:
            number: Number of the station.
            chosen: Choice.
            moments: Moments behind the choice. Without those that are needed, the choice's own fit stays.
        """
        station, gone = self.stations[number], self.maker.gone_blocks(chosen)
        found, block = moments.get((number, self.blocks.aim(number, gone))), self.blocks.behind(number, gone)
        if station.site in chosen and self.fit_of is not None:
            variant, before = chosen[station.site]
            fit = before if found is None else self.fit_of(station.site, station, variant, found)
            return {station.site: (variant, fit)}
        if block and found is not None:
            reader = found.reader(None, get_module(self.start, station.reader))
            return {block: (chosen[block][0], Fit({station.reader: reader}))}
        return {}

    def _walked(
        self, chosen: Chosen, spread: Spread
    ) -> tuple[dict[str, tuple[Variant, Fit]], dict[tuple[int, int], StationMoments]]:
        network, at = share_copy(self.start).eval(), {station.site for station in self.stations}
        gone = self.maker.gone_blocks(chosen)
        found = {site: own for site, own in chosen.items() if site not in at}
        found |= {block: (chosen[block][0], Fit()) for block in gone if block in self.blocks.around}
        apply_edits(network, *self.maker.edits(found), to_read=True)
        passes, moments = FrontToBack(network, self.batches), dict[tuple[int, int], StationMoments]()
        self.streams.begin()
        with progress("fitting in order", len(self.stations)) as advance:
            for number, station in enumerate(self.stations):
                there = _is_there(network, station)
                moments |= self._moments(number, gone, passes, spread) if there else {}
                fitted = {site: (v, fit.held()) for site, (v, fit) in self.fitted_at(number, chosen, moments).items()}
                found |= fitted
                if there and fitted:
                    apply_edits(network, *self.maker.edits_at(station.site, fitted), to_read=True)
                    passes.renew()
                self.streams.leave(number)
                advance()
        found = {site: found[site] for site in chosen}
        return dict(fitted_in_order(self.model, self.maker, found, self.batches, narrowed=False)), moments

    def _moments(
        self, number: int, gone: Sequence[str], passes: FrontToBack, spread: Spread
    ) -> dict[tuple[int, int], StationMoments]:
        """Return the moments of a station by the stream that it may lead to, where some batch reaches both."""
        aims, found = self.blocks.aims(number, gone), dict[tuple[int, int], StationMoments]()
        for part in spread(f"moments {number}", PARTS, lambda part: self._sums(number, aims, passes, part)):
            for aim, sums in part.items():
                found.setdefault((number, aim), StationMoments()).join(sums)
        for one in found.values():
            one.hold()
        return found

    def _sums(self, number: int, aims: Sequence[int], passes: FrontToBack, part: int) -> dict[int, Sums]:
        """Return the sums of a station over a part of the batches, by the stream aimed at."""
        station, found = self.stations[number], dict[int, StationMoments]()
        for at in range(part, len(self.batches), PARTS):
            inputs = self.batches[at]
            now = seen_at(passes, station, inputs)
            if now is None:
                continue
            rows = sum(batch.n_samples for batch in self.batches) * len(now.read) // max(1, inputs.n_samples)
            step = max(1, rows // (ROWS * now.read.shape[-1]))
            weight = self.weights[number].of(at).flatten() if self.weights else None
            for aim in aims:
                total = self.streams.of(aim, at)
                if total is not None and total.shape == now.total.shape:
                    found.setdefault(aim, StationMoments(step)).add(now, total, weight)
        return {aim: moments.sums for aim, moments in found.items()}


def fitted_in_order(
    model: nn.Module, maker: EditMaker, chosen: Chosen, batches: Sequence[ModelInputs], *, narrowed: bool
) -> Chosen:
    """Return a choice with replacements from the graph fitted on the pruned stream, towards the dense outputs.

    Args:
        model: Dense network, in evaluation mode.
        maker: Maker of the edits of variants.
        chosen: Choice, with each replacement fitted as the only change.
        batches: Calibration samples on the model's device.
        narrowed: Whether replacements on narrowed streams are fitted, too, and keep the present widths.
    """
    sized, kept = maker.sized(chosen)
    alone = {site: fit.stand_in for site, (_, fit) in sized.items() if fit.stand_in is not None}
    if not alone.keys() - ({} if narrowed else kept).keys():
        return chosen
    edits, tensors = maker.edits(sized)
    ridges = {site: stand_in.ridge for site, stand_in in alone.items()}
    around = normalisation(model, batches, narrowed=maker.network is not None)
    fits = refit_in_order(model, edits, batches, ridges, maker.weights, tensors, kept, around)
    found = dict(sized if narrowed else chosen)
    for site, stand_in in fits.items():
        if narrowed or site not in kept:
            found[site] = found[site][0], replace(found[site][1], stand_in=stand_in)
    return found


def _is_there(network: nn.Module, station: Station) -> bool:
    """Whether a station still exists: a block around the station may be removed."""
    try:
        return bool(get_module(network, station.entry) and get_module(network, station.reader))
    except ValueError:
        return False
