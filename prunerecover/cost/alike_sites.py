"""Latency saved by variants of sites, estimated from a few measurements of alike sites together.

One site is too small for a clock: a site takes a few percent of a forward pass, and two measurements of one model
differ by one percent. Alike sites have equal costs, so all of them get a variant at once, and the measured saving is
divided among the sites. Small classes of sites are measured together with other sites of the kind, at equal relative
sizes. Between measurements, latency is interpolated over the MACs, and never rises as a site gets smaller.

Not covered: savings of several sites together beyond the sum of their single savings. Measure the final choice as a
whole.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from prunerecover.display.progress import progress

Curve = Callable[[Sequence[float]], Any]  # latency saved per MACs of the largest variant, by relative sizes
MOST = 16  # measurements
SIZES = 4  # measured sizes per pool
CLASS_MACS, CLASS_SITES = 0.08, 3  # the least of a class of alike sites to be measured on its own
POOL_MACS = 0.04  # the least MACs of sites together to show on a clock


@dataclass(frozen=True)
class TimedVariant:
    """Variant of a site with unknown latency.

    Attributes:
        site: Name of the site.
        alike: Class of sites with equal costs: kind and shape. Variants of one site with different effects on a clock,
            for example fewer heads and smaller heads, may belong to different classes.
        name: Name of the variant.
        kind: Kind of the site.
        macs: Share of the network's MACs saved by the variant; 0 for the site unchanged.
    """

    site: str
    alike: Hashable
    name: str
    kind: str
    macs: float


Measure = Callable[[Sequence[TimedVariant]], float]  # share of the latency saved by variants of several sites together


def latency_shares(variants: Sequence[TimedVariant], measure: Measure, *, most: int = MOST) -> list[float]:
    """Return the share of the latency saved by each variant.

    Args:
        variants: Variants of any number of sites.
        measure: Clock; gets a variant of each of some sites.
        most: Largest number of measurements, at least one.

    Raises:
        ValueError: If no measurement is allowed, or the MACs saved by a variant are negative.

    >>> alike = [TimedVariant(f"blocks.{i}.mlp", "mlp", "gone", "mlp", macs=0.05) for i in range(4)]
    >>> [round(share, 3) for share in latency_shares(alike, lambda variants: 0.16)]
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
    """Sites of one kind, measured together.

    Attributes:
        kind: Kind.
        variants: Variants with positive savings.
    """

    kind: str
    variants: tuple[TimedVariant, ...]

    @property
    def largest(self) -> Mapping[tuple[str, Hashable], float]:
        """MACs saved by the largest variant of each site and class."""
        found: dict[tuple[str, Hashable], float] = {}
        for v in self.variants:
            found[v.site, v.alike] = max(v.macs, found.get((v.site, v.alike), 0.0))
        return found

    @property
    def macs(self) -> float:
        """MACs saved by the largest variants of all sites together."""
        return sum(self.largest.values())

    @property
    def sized(self) -> list[tuple[TimedVariant, float]]:
        """Variants with their savings relative to the largest variant of the site."""
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
    """Return the classes of alike sites large enough for a clock, and one pool per kind for all other sites."""
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
    """Return a relative size, and the latency saved per MAC of the pool's largest variants."""
    saved = measure(level)
    advance()
    return sum(variant.macs for variant in level) / pool.macs, saved / pool.macs


def _curve(points: Mapping[_Pool, Sequence[tuple[float, float]]], pools: Sequence[_Pool]) -> Curve:
    """Return the rising curve through points of pools, weighed by MACs; without points, latency goes as MACs."""
    from sklearn.isotonic import IsotonicRegression

    found = [(size, saved, pool.macs) for pool in pools for size, saved in points[pool]] or [(1.0, 1.0, 1.0)]
    sizes, saved, weights = np.array([(0.0, 0.0, 1e6), *found]).T
    fitted = IsotonicRegression(y_min=0.0, out_of_bounds="clip").fit(sizes, saved, sample_weight=weights)
    curve: Curve = fitted.predict
    return curve
