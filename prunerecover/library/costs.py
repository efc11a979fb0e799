"""Costs of variants: the share of a cost of the network saved by each variant alone."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from prunerecover.cost.alike_sites import TimedVariant, latency_shares
from prunerecover.display.progress import progress
from prunerecover.library.edits import EditMaker
from prunerecover.library.variants import DENSE, LibrarySite, Variant
from prunerecover.model.evaluation import unless_failing
from prunerecover.model.paths import get_module
from prunerecover.plan.edits import Edit
from prunerecover.plan.kinds import TRAITS
from prunerecover.session.session import Session
from prunerecover.store.search_store import SearchStore

Shares = dict[str, dict[str, float]]  # by site, and by name of the variant


class VariantCosts:
    """Costs of the variants of one network, each computed on first use.

    Args:
        session: Network and samples.
        maker: Maker of the edits of variants.
        store: Store of the search; None: no timing is kept.
    """

    def __init__(self, session: Session, maker: EditMaker, store: SearchStore | None = None) -> None:
        self.session, self.maker, self.store = session, maker, store or SearchStore()
        self._known: dict[str, Shares] = {}

    def shares(self, cost: str) -> Shares:
        """Return the share saved by each variant, by site and name; of a kind of units, the number of removed units.

        Args:
            cost: Name of the cost, or a kind of depth.
        """
        if cost in TRAITS:
            return {
                name: {variant.name: float(site.kind == cost and bool(variant.leaves)) for variant in site.variants}
                for name, site in self.maker.sites.items()
            }
        if cost not in self._known:
            self._known[cost] = self._timed() if cost == "latency" else self._counted(cost)
        return self._known[cost]

    def _counted(self, cost: str) -> Shares:
        alike: dict[tuple[Hashable, str], float] = {}
        found: Shares = {}
        with progress("counting what variants cost", len(self.maker.sites)) as advance:
            for name, site in self.maker.sites.items():
                # caches of layers of one shape may differ in the lengths of their windows
                key = name if cost == "memory" else class_of(self.session, site)
                for variant in site.variants:
                    if (key, variant.name) not in alike:
                        alike[key, variant.name] = self._saved(site, variant, cost)
                found[name] = {variant.name: alike[key, variant.name] for variant in site.variants}
                advance()
        return found

    def _saved(self, site: LibrarySite, variant: Variant, cost: str) -> float:
        """Return the share saved by one variant, in closed form if all removed units belong to one group."""
        if variant.name == DENSE:
            return 0.0
        network = self.maker.network
        closed = network is not None and all(name in network.costs.sizes for name in variant.removed)
        closed = closed and cost in ("macs", "params")
        if network is not None and closed and not variant.leaves and len(variant.removed) == 1:
            sizes = network.costs.sizes
            left = network.costs.total({name: sizes[name] - len(gone) for name, gone in variant.removed.items()})
            return 1 - float(getattr(left, cost)) / float(getattr(network.costs.full, cost))
        edits, _ = self.maker.edits({site.name: (variant, self.maker.alone(site.name, variant))})
        return self._measured(cost, edits) or 0.0  # with a failing network, the divergence is infinite

    def _measured(self, cost: str, edits: Sequence[Edit]) -> float | None:
        """Return the share of a counted cost saved by edits; None where the network fails, and the dense does not."""
        of_dense = self.session.cost(cost)
        found = unless_failing(lambda: of_dense.removed_share(edits))
        if found is None:
            _ = of_dense.dense  # raises, too, if the dense network has no such cost
        return found

    def rough_share(self, edits: Sequence[Edit], *, whole: bool = False) -> float:
        """Return the approximate share of the latency saved by edits, from a short measurement.

        Args:
            edits: Edits.
            whole: Whether the whole example is run; else few samples, enough for a single site. Of few samples, sites
                together save another share.
        """
        if not edits:
            return 0.0
        clock, names = self.session.cost("latency"), [str(whole), *map(str, edits)]
        clock = clock if whole else clock.on_few
        return self.store.results("rough latency", [names], lambda _: clock.rough_share(edits))[0]

    def together(self, costs: Sequence[str], names: Mapping[str, str], clock: bool) -> dict[str, float]:
        """Return the shares of costs saved by variants together.

        Args:
            costs: Names of the costs.
            names: Names of variants, by site.
            clock: Whether the latency, if among the costs, is estimated; else the latency is left out.

        Returns:
            Shares by cost; none where the network fails without the variants together: the divergence is infinite then.
        """
        variants = {site: self.maker.sites[site].variant(name) for site, name in names.items() if name != DENSE}
        chosen = {site: (variant, self.maker.alone(site, variant)) for site, variant in variants.items()}
        edits, _ = self.maker.edits(chosen, in_place=False)
        if not edits:
            return dict.fromkeys(costs, 0.0)
        found = {cost: self._measured(cost, edits) for cost in costs if cost != "latency"}
        saved = {cost: share for cost, share in found.items() if share is not None}
        if len(saved) < len(found):
            return {}
        return saved | ({"latency": self.rough_share(edits, whole=True)} if clock and "latency" in costs else {})

    def _timed(self) -> Shares:
        macs = self.shares("macs")
        variants = [
            TimedVariant(
                site=name,
                alike=(class_of(self.session, site), _way(site, variant)),
                name=variant.name,
                kind=site.kind,
                macs=max(0.0, macs[name][variant.name]),
            )
            for name, site in self.maker.sites.items()
            for variant in site.variants
        ]
        shares = latency_shares(variants, self._rough_share_of)
        found: Shares = {}
        for variant, share in zip(variants, shares, strict=True):
            found.setdefault(variant.site, {})[variant.name] = share
        return found

    def _rough_share_of(self, level: Sequence[TimedVariant]) -> float:
        """Return the approximate share of the latency saved by variants of several sites together.

        Groups are narrowed at once: a layer may read several of them. Units go one by one: all blocks of a list may go.
        """
        variants = {one.site: self.maker.sites[one.site].variant(one.name) for one in level}
        chosen = {site: (variant, self.maker.alone(site, variant)) for site, variant in variants.items()}
        narrowed = {site: one for site, one in chosen.items() if not one[0].leaves}
        edits = [*self.maker.edits(narrowed)[0]]
        for site in (site for site in chosen if site not in narrowed):
            edits += [edit for edit in self.maker.edits({site: chosen[site]})[0] if edit not in edits]
        return self.rough_share(edits)


def _way(site: LibrarySite, variant: Variant) -> tuple[str, ...]:
    """Return the kinds of the removed units: equal MACs of heads, head dimensions and whole units take unequal time."""
    return tuple(group.kind for group in site.groups if group.name in variant.removed) or (site.kind,)


def class_of(session: Session, site: LibrarySite) -> Hashable:
    """Return the class of alike sites: the kind, and the shapes of all changeable parts."""
    shapes = tuple(
        tuple(parameter.shape) for path in site.modules for parameter in get_module(session.model, path).parameters()
    )
    sizes = tuple((group.kind, group.size, group.products) for group in site.groups)
    return site.kind, shapes, sizes, site.unit.macs if site.unit else 0
