"""Latency that variants of sites save, estimated from a few measurements of alike sites together.

One site is too small for a clock: it holds a few percent of a forward pass, and two measurements of one model differ by
one. Sites that are alike cost the same, so all of them get a variant at once, and what is measured is split among them.
Small classes of sites are measured together with others of their kind, at the same size relative to what each site can
save. In between, latency is interpolated over the MACs, and never rises as a site gets smaller.

Not covered: what sites save together beyond the sum of what they save alone. Measure what was chosen as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from prunerecover.display.progress import progress
from prunerecover.plan.edits import Edit

Measure = Callable[[Sequence[Edit]], float]  # share of the latency that edits save
Curve = Callable[[Sequence[float]], Any]  # latency saved per MACs of the largest variant, by relative sizes
MOST = 16  # measurements
SIZES = 4  # of a pool
CLASS_MACS, CLASS_SITES = 0.08, 3  # that a class of alike sites holds, to be measured on its own
POOL_MACS = 0.04  # that sites hold together, or a clock does not tell them from nothing


@dataclass(frozen=True)
class TimedVariant:
    """A variant of a site, whose latency is asked for.

    Attributes:
        site: Name of the site.
        alike: Class of sites that cost the same: their kind and shape. Variants of one site that a clock sees
            differently, as fewer heads and smaller ones, may belong to classes of their own.
        name: Name of the variant.
        kind: Kind of the site.
        edits: Edits that make it, paths left as they are; those of several sites are applied together, and what they
            share is applied once.
        macs: Share of the network's MACs that it saves; 0 for the site as it is.
    """

    site: str
    alike: Hashable
    name: str
    kind: str
    edits: tuple[Edit, ...] = field(hash=False)  # settings in edits have no hash
    macs: float


def latency_shares(variants: Sequence[TimedVariant], measure: Measure, *, most: int = MOST) -> list[float]:
    """Return the share of the latency that each variant saves.

    Args:
        variants: Variants of any number of sites.
        measure: Clock; see `surgery.saved_cost.RoughClock`.
        most: Largest number of measurements, at least one.

    Raises:
        ValueError: If there is to be no measurement, or a variant saves less than nothing.

    >>> alike = [TimedVariant(f"blocks.{i}.mlp", "mlp", "gone", "mlp", (), macs=0.05) for i in range(4)]
    >>> [round(share, 3) for share in latency_shares(alike, lambda edits: 0.16)]
    [0.04, 0.04, 0.04, 0.04]
    """
    if most < 1:
        raise ValueError(f"Expected most to be at least one measurement, but got {most}. {MOST} are usual.")
    if (less := next((variant for variant in variants if variant.macs < 0), None)) is not None:
        raise ValueError(
            f"Expected variants that save MACs, but '{less.name}' of {less.site} saves {less.macs:.2%}. Leave out "
            "variants that cost more than the site as it is."
        )
    pools = _pools(variants)
    timed = sorted((pool for pool in pools if pool.macs >= POOL_MACS), key=lambda pool: -pool.macs)[:most]
    sizes = min(SIZES, most // max(1, len(timed)))
    levels = {pool: pool.levels(sizes) for pool in timed}
    with progress("timing sizes of alike sites", sum(map(len, levels.values()))) as advance:
        points = {pool: [_point(pool, level, measure, advance) for level in levels[pool]] for pool in timed}
    saved: dict[int, float] = {}
    for pool in pools:
        alike = [other for other in timed if other.kind == pool.kind] or timed
        curve = _curve(points, [pool] if pool in points else alike)
        shares = curve([size for _, size in pool.sized]) * [pool.largest[v.site, v.alike] for v, _ in pool.sized]
        saved |= {id(v): float(share) for (v, _), share in zip(pool.sized, shares, strict=True)}
    return [saved.get(id(variant), 0.0) for variant in variants]


@dataclass(frozen=True, eq=False)
class _Pool:
    """Sites of one kind that are measured together.

    Attributes:
        kind: Kind.
        variants: Variants that save something.
    """

    kind: str
    variants: tuple[TimedVariant, ...]

    @property
    def largest(self) -> Mapping[tuple[str, Hashable], float]:
        """MACs that a site's largest variant saves."""
        found: dict[tuple[str, Hashable], float] = {}
        for v in self.variants:
            found[v.site, v.alike] = max(v.macs, found.get((v.site, v.alike), 0.0))
        return found

    @property
    def macs(self) -> float:
        """MACs that the largest variants of all sites save together."""
        return sum(self.largest.values())

    @property
    def sized(self) -> list[tuple[TimedVariant, float]]:
        """Variants with what each saves of what its site can save."""
        largest = self.largest
        return [(v, v.macs / largest[v.site, v.alike]) for v in self.variants]

    def levels(self, sizes: int) -> list[tuple[TimedVariant, ...]]:
        """Return a variant of each site for about `sizes` relative sizes, evenly spaced from the largest down."""
        by_site: dict[str, list[tuple[TimedVariant, float]]] = {}
        for variant, size in self.sized:
            by_site.setdefault(variant.site, []).append((variant, size))
        wanted = [(sizes - step) / sizes for step in range(sizes)]
        return list(dict.fromkeys(tuple(_nearest(own, size) for own in by_site.values()) for size in wanted))


def _nearest(sized: Iterable[tuple[TimedVariant, float]], wanted: float) -> TimedVariant:
    return min(sized, key=lambda one: abs(one[1] - wanted))[0]


def _pools(variants: Sequence[TimedVariant]) -> list[_Pool]:
    """Return classes of alike sites that a clock can tell, and by kind all others together."""
    classes: dict[tuple[str, Hashable], list[TimedVariant]] = {}
    for variant in variants:
        if variant.macs > 0:
            classes.setdefault((variant.kind, variant.alike), []).append(variant)
    found, rest = list[_Pool](), dict[str, list[TimedVariant]]()
    for (kind, _), own in classes.items():
        pool = _Pool(kind, tuple(own))
        if pool.macs >= CLASS_MACS and len({v.site for v in own}) >= CLASS_SITES:
            found.append(pool)
        else:
            rest.setdefault(kind, []).extend(own)
    return found + [_Pool(kind, tuple(own)) for kind, own in rest.items()]


def _point(
    pool: _Pool, level: Sequence[TimedVariant], measure: Measure, advance: Callable[[], object]
) -> tuple[float, float]:
    """Return a relative size, and the latency that it saves per MACs that the pool can save."""
    edits = list[Edit]()
    for edit in chain.from_iterable(variant.edits for variant in level):
        if edit not in edits:  # sites share what has to be rewritten first
            edits.append(edit)
    saved = measure(edits)
    advance()
    return sum(variant.macs for variant in level) / pool.macs, saved / pool.macs


def _curve(points: Mapping[_Pool, Sequence[tuple[float, float]]], pools: Sequence[_Pool]) -> Curve:
    """Return the rising curve through points of pools, each weighed by its MACs; latency goes as MACs without any."""
    from sklearn.isotonic import IsotonicRegression

    found = [(size, saved, pool.macs) for pool in pools for size, saved in points[pool]] or [(1.0, 1.0, 1.0)]
    sizes, saved, weights = np.array([(0.0, 0.0, 1e6), *found]).T
    fitted = IsotonicRegression(y_min=0.0, out_of_bounds="clip").fit(sizes, saved, sample_weight=weights)
    curve: Curve = fitted.predict
    return curve
