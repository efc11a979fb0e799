"""The library of a network: variants of all its sites, fitted and scored alone."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import nn

from prunerecover.calibration.moments import LARGEST
from prunerecover.calibration.places import Fit as StandInFit
from prunerecover.calibration.stand_in_fits import fits_alone
from prunerecover.calibration.token_weights import row_weights
from prunerecover.depth.layers.fit_places import fit_places
from prunerecover.depth.layers.removals import Removals
from prunerecover.display.progress import progress
from prunerecover.families.describe import describe, is_supported
from prunerecover.importance.measuring.unit_slices import Scores
from prunerecover.library.blocks import blocks_of
from prunerecover.library.edits import FITTED, Chosen, EditMaker, Fit
from prunerecover.library.head_sizes import smaller_heads
from prunerecover.library.moments import StationMoments
from prunerecover.library.scoring import Scorers
from prunerecover.library.stations import Station, graph_of_few, is_read, stations_of
from prunerecover.library.variants import BRANCHES, DENSE, LibrarySite, Variant, sites_of
from prunerecover.library.walk import Moments, Walks
from prunerecover.model.batches import ModelInputs
from prunerecover.model.linears import linear_shape
from prunerecover.model.paths import get_module
from prunerecover.plan.groups import Group
from prunerecover.plan.units import Unit
from prunerecover.session.pruned_output import subsample
from prunerecover.session.session import Session
from prunerecover.store.search_store import SearchStore
from prunerecover.width.compensation import moments_of, readers_of
from prunerecover.width.narrowable import NarrowableNetwork

ON_TOP = 2.0  # scores on top of choices for each score alone, for one budget of DeiT-Tiny or ResNet-56
FITS = 60  # passes to fit choices in order and to tune one, of the same
SEARCHED = 96  # samples to fit on during a search, where there are twice as many
TINY = 1e-7  # divergence at which replacements are as good as each other, and the cheapest is the best


@dataclass(frozen=True)
class Scored:
    """A variant in the library.

    Attributes:
        variant: Variant.
        divergence: Divergence of the output with the variant as the only change; NaN if not measured.
    """

    variant: Variant
    divergence: float


class Library:
    """Variants of all sites of a network.

    Args:
        session: Network and samples.
        units: Units of depth that may go.
        network: Groups that may be narrowed, or None.
        scores: Importance of each unit of a group, by group.
        groups: Groups with rounded sizes.
        head_sizes: Groups of head dimensions.
        store: Store of the search; None: no results are kept.

    Attributes:
        sites: Sites by name, in order of execution.
        maker: Maker of the edits of variants.
        blocks: Blocks between stations.
        scored: Variants by site and name, including the unchanged site.
        lists: Names of blocks of one container, at least one of them to stay.
    """

    def __init__(
        self,
        session: Session,
        units: Sequence[Unit],
        network: NarrowableNetwork | None,
        scores: Scores,
        groups: Sequence[Group],
        head_sizes: Sequence[Group] = (),
        store: SearchStore | None = None,
    ) -> None:
        self.session, self.store = session, store or SearchStore()
        traced = session.traced
        kinds = tuple(dict.fromkeys(unit.kind for unit in units))
        removals = Removals(session.model, traced, kinds) if units else None
        stand_ins = _stand_ins(removals, session)
        names, lists = {unit.name for unit in units}, () if removals is None else removals.block_lists
        self.lists = tuple(tuple(sorted(one)) for one in lists if one <= names)  # in which every block may go
        self.graph = traced.graph
        several = graph_of_few(session.model, session.first)
        bare = sites_of(units, groups, scores, {unit.name: ("zero",) for unit in units})
        self.stations = stations_of(session.model, several, bare)
        at = {station.site for station in self.stations}
        leaves = {name: (*stand_ins.get(name, ()), *own) for name, own in _leaves(units, session, at).items()}
        sites = sites_of(units, groups, scores, leaves)
        self.sites: Mapping[str, LibrarySite] = {site.name: site for site in sites}
        self.maker = EditMaker(self.sites, network, removals, head_sizes=head_sizes, stand_ins=stand_ins)
        self.blocks = blocks_of(several, sites, self.stations)
        refitted = {station.reader for station in self.stations}
        if network is not None:
            readers = [reader for reader in readers_of(network.groups) if reader.module not in refitted]
            self.maker.moments = moments_of(session.model, readers, session.samples.fit)
        self.scored: dict[str, dict[str, Scored]] = {}
        self._moments: Moments = {}  # of the dense network
        self._fits: dict[tuple[str, str], Fit] = {}

    @cached_property
    def walks(self) -> Walks:
        """Walks that fit choices in order during a search, on some of the samples."""
        return self._walks(subsample(self.session.samples.fit, SEARCHED))

    def fitted(self, chosen: Chosen) -> Chosen:
        """Return a choice of a search, fitted in order on all samples."""
        samples = self.session.samples.fit
        alike = len(self.walks.batches) == len(samples)
        return chosen if alike else self._walks(samples).walk(chosen, together=True)[0]

    def _walks(self, batches: Sequence[ModelInputs]) -> Walks:
        session, paths = self.session, [station.reader for station in self.stations]
        weights = row_weights(session.model, paths, batches, session.seed) if paths else []
        spread, at = self.store.spread, (self.stations, self.blocks)
        return Walks(session.model, self.maker, *at, batches, self.fit_of, weights, spread=spread)

    @cached_property
    def scorers(self) -> Scorers:
        """Scorers of choices."""
        return Scorers(self.session.model, self.graph, self.maker, self.session.samples)

    @property
    def fits_depth(self) -> bool:
        """Whether a fit takes over for units of depth: in their place, or for blocks in the layer before."""
        if not is_supported(self.session.model):
            return True
        at, kinds = {station.site for station in self.stations}, {site.kind for site in self.sites.values()}
        branches = (site.name for site in self.sites.values() if site.kind in BRANCHES)
        return at.issuperset(branches) and ("block" not in kinds or bool(self.blocks.around))

    @property
    def expected_passes(self) -> float:
        """Rough number of passes of all samples through the network for one more budget, scores alone included."""
        samples, left = self.session.samples, ON_TOP if self.scored else 1 + ON_TOP
        variants = sum(variant.scored for site in self.sites.values() for variant in site.variants[1:])
        held_out = sum(batch.n_samples for batch in samples.held_out) / samples.n_samples
        return left * variants * held_out / 2 + FITS  # half of the network is behind a variant

    def changed(self, chosen: Chosen, site: str, name: str, moments: Moments) -> dict[str, tuple[Variant, Fit]]:
        """Return a choice with another variant at one site, fitted there by the moments behind the choice.

        Args:
            chosen: Choice.
            site: Site.
            name: Name of the variant.
            moments: Moments behind the choice.
        """
        found, variant = {other: one for other, one in chosen.items() if other != site}, self.sites[site].variant(name)
        if name != DENSE:
            found[site] = variant, self.fit_of(site, None, variant, None)
        gone, before = self.maker.gone_blocks(found), self.maker.gone_blocks(chosen)
        for number, station in enumerate(self.stations):
            if station.site == site or self.blocks.aim(number, gone) != self.blocks.aim(number, before):
                if block := self.blocks.behind(number, gone):
                    found[block] = found[block][0], Fit()  # fitted with the station's site now, or anew
                found |= self.walks.fitted_at(number, found, moments)
        return {own: found[own] for own in self.sites if own in found}

    def fit_of(self, site: str, station: Station | None, variant: Variant, moments: StationMoments | None) -> Fit:
        """Fit a variant; an empty fit for a site without a station, and for a removal without a replacement."""
        fit = self.maker.alone(site, variant)
        if fit.stand_in is not None:
            return fit
        if station is None or moments is None or variant.leaves == "zero" or variant.name == DENSE:
            return Fit()
        if variant.leaves:
            return Fit(replacement=moments.replacement(variant.leaves))
        return self._narrowed(self.sites[site].groups, variant, station, moments)

    def _narrowed(self, groups: Sequence[Group], variant: Variant, station: Station, moments: StationMoments) -> Fit:
        """Fit a narrowed site: the last linear, and for smaller heads queries, keys and values, too."""
        sizes = next((group for group in groups if group.kind == "head_dim" and group.name in variant.removed), None)
        dense: Any = get_module(self.session.model, station.reader)
        if sizes is not None and linear_shape(dense)[0] > LARGEST:
            return Fit()
        if sizes is None:
            return Fit({station.reader: moments.reader(features_left(self.session.model, groups, variant), dense)})
        heads = next((group for group in groups if group.kind == "head"), None)
        gone = set(variant.removed.get(heads.name, ())) if heads is not None else set()
        count = len(sizes.slices[-1].offsets) if heads is None else heads.size
        smaller = smaller_heads(
            sizes,
            self.session.model,
            sizes.size - len(variant.removed[sizes.name]),
            [number for number in range(count) if number not in gone],
            moments.entered.second_moment(),
            moments.read.second_moment(),
        )
        modules: dict[str, dict[str, torch.Tensor]] = {}
        for path, value in smaller.values.items():
            module, _, name = path.rpartition(".")
            modules.setdefault(module, {})[name] = value
        return Fit({**modules, station.reader: moments.reader(smaller.reduction[:-1, :-1], dense)})

    def score(self) -> None:
        """Score every variant alone."""
        _, self._moments = self.walks.walk({}, together=True)
        for name, site in self.sites.items():
            self.scored[name] = {DENSE: Scored(site.variant(DENSE), 0.0)}
            for variant in site.variants[1:]:
                self.scored[name][variant.name] = Scored(variant, math.nan)
        self.measured([(name, v.name) for name, site in self.sites.items() for v in site.variants if v.scored])

    def fit(self, site: str, name: str) -> Fit:
        """Return the fitted values of a site's variant, by its name, as the only change; computed once."""
        if (site, name) not in self._fits:
            self._fits[site, name] = self.changed({}, site, name, self._moments)[site][1].held()
        return self._fits[site, name]

    def measured(self, asked: Sequence[tuple[str, str]]) -> list[float]:
        """Return the scores of variants, by the names of sites and variants; each is measured once.

        Args:
            asked: Names of sites and variants.
        """
        new = [(site, name) for site, name in asked if math.isnan(self.scored[site][name].divergence)]

        def divergence(number: int) -> float:
            site, name = new[number]
            return self.scorers.alone.divergence({site: (self.scored[site][name].variant, self.fit(site, name))})

        with progress("scoring variants", len(new)) as advance:
            found = self.store.results("variant", new, divergence, advance) if new else []
        for (site, name), score in zip(new, found, strict=True):
            self.scored[site][name] = replace(self.scored[site][name], divergence=score)
        return [self.scored[site][name].divergence for site, name in asked]

    def price(self, site: str, name: str) -> float:
        """Return the divergence per saved MAC of a variant, less the MACs of a replacement known from the graph alone.

        In supported families, replacements cost little, and are not counted.
        """
        unit, one = self.sites[site].unit, self.scored[site][name]
        fit = self.maker.alone(site, one.variant).stand_in
        saved = 1.0 if unit is None or fit is None or not unit.macs else 1 - fit.macs / unit.macs
        return (max(0.0, one.divergence) + TINY) / saved if one.variant.leaves else one.divergence

    def chosen(self, names: Mapping[str, str]) -> Chosen:
        """Return a choice by the names of variants, with each fit as the only change."""
        found = {site: name for site, name in names.items() if name != DENSE}
        return {site: (self.sites[site].variant(name), self.fit(site, name)) for site, name in found.items()}


def _leaves(units: Sequence[Unit], session: Session, at: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Return the replacements of units by name, costlier replacements first; fits from the graph are not included.

    Args:
        units: Units.
        session: Network and samples.
        at: Sites with a station, where replacements are fitted.
    """
    blocks = describe(session.model).blocks if is_supported(session.model) else ()
    inputs = {own.path: own.dim for block in blocks for own in (block.attention, block.mlp) if own is not None}
    found: dict[str, tuple[str, ...]] = {u.name: ("identity" if u.kind == "activation" else "zero",) for u in units}
    for unit in units:
        if unit.kind in BRANCHES and unit.name in inputs and unit.name in at and session.samples.enough:
            found[unit.name] = FITTED if inputs[unit.name] <= LARGEST else ("constant",)
    return found


def _stand_ins(removals: Removals | None, session: Session) -> dict[str, dict[str, StandInFit]]:
    """Return fitted replacements of units known from the graph alone, by unit and name."""
    if removals is None or is_supported(removals.model) or not session.samples.enough:
        return {}
    places = fit_places(removals)
    found = fits_alone(removals.model, places, session.samples.fit) if places else {}
    macs = {unit.name: unit.macs or math.inf for unit in removals.units}
    return {unit: {_named(fit): fit for fit in fits if fit.macs < macs[unit]} for unit, fits in found.items()}


def _named(fit: StandInFit) -> str:
    return f"{fit.leaves} {fit.ridge:g}" if fit.leaves == "affine" else fit.leaves


def features_left(model: nn.Module, groups: Sequence[Group], variant: Variant) -> torch.Tensor:
    """Return the numbers of the remaining features in the input of a site's last linear."""
    (group,) = [group for group in groups if group.name in variant.removed]
    (part,) = [part for part in group.slices if is_read(model, part)]
    gone = part.indices(torch.tensor(variant.removed[group.name], dtype=torch.long))
    stays = torch.ones(group.size * part.span, dtype=torch.bool)
    stays[gone - part.offsets[0]] = False
    return stays.nonzero()[:, 0]
