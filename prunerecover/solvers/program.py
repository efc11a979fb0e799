"""Integer program: one variant for each site, of least score, with enough saving in every cost.

Scores are added up, as if sites did not interact; `solvers.refine` scores variants again on top of the choice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isnan

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from prunerecover.refusal import Refusal

Chosen = dict[str, str]  # name of the variant, by site
SECONDS = 20.0  # time limit, after which the best set found so far is taken
OVER = 0.01  # of a cost: largest saving beyond the need, if variants allow it
GAP = 1e-3  # relative, of scores: scores themselves are no more precise


@dataclass(frozen=True)
class Option:
    """Variant in the program.

    Attributes:
        name: Name of the variant.
        score: Divergence of the variant; lower is better.
        saved: Saved share, by cost.
        gone: Whether the site is removed, so that no part is left to be as large as in alike sites.
    """

    name: str
    score: float
    saved: Mapping[str, float]
    gone: bool = False


@dataclass(frozen=True)
class Program:
    """Choice of one option per site.

    Attributes:
        options: Options by site, the unchanged site first.
        holds: Pairs of an outer and an inner site: if the outer site changes, the inner site must stay unchanged.
        alike: Sites that must take options of one name, except removed sites.
        lists: Lists of sites, each to keep at least one site.
        exact: Whether exactly the need is to be saved, as numbers of units are.
    """

    options: Mapping[str, Sequence[Option]]
    holds: Sequence[tuple[str, str]] = ()
    alike: Sequence[Sequence[str]] = field(default=())
    lists: Sequence[Sequence[str]] = field(default=())
    exact: bool = False

    def known(self) -> dict[str, dict[str, float]]:
        """Return the known scores, by site and option: NaN is not known."""
        return {
            site: {one.name: max(0.0, one.score) for one in own if not isnan(one.score)}
            for site, own in self.options.items()
        }

    def of_whole_sites(self) -> Program:
        """Return the program in which sites stay or go, and none gets smaller."""
        whole = {site: [one for n, one in enumerate(own) if n == 0 or one.gone] for site, own in self.options.items()}
        return replace(self, options=whole)

    def most(self, cost: str) -> float:
        """Return the largest possible saving of a cost, as a share."""
        return self.saved(self._solved({cost: -1.0}, {}, None) or {}, cost)

    def solve(self, need: Mapping[str, float], near: tuple[Chosen, int] | None = None) -> Chosen:
        """Return the options of least score with enough saving in every cost.

        Args:
            need: Shares to remove, by cost.
            near: Earlier choice, and the number of sites that may differ.

        Raises:
            Refusal: If no choice saves enough.
        """
        capped = [one for cost in need if (one := self._solved({}, need, near, (cost, need[cost] + OVER))) is not None]
        found = min(capped, key=self.score) if capped else self._nearest(need, near)
        if found is None and near is None:
            most = {cost: self.most(cost) for cost in need}
            can = ", ".join(f"{share:.1%} of the {cost}" for cost, share in most.items())
            raise Refusal(
                "a budget that the variants of all sites can meet, "
                + ", ".join(f"{share:.1%} of the {cost}" for cost, share in need.items()),
                f"at most {can} can go",
                "Lower the budget, or ignore fewer sites.",
            )
        return dict(near[0]) if found is None and near is not None else found or {}

    def _nearest(self, need: Mapping[str, float], near: tuple[Chosen, int] | None) -> Chosen | None:
        """Return the choice of least score among the choices of nearly least saving; None if no choice saves enough."""
        least = self._solved(dict.fromkeys(need, 1.0), need, near)
        if least is None or not need:
            return least
        cost = next(iter(need))
        return self._solved({}, need, near, (cost, self.saved(least, cost) + OVER))

    def saved(self, chosen: Mapping[str, str], cost: str) -> float:
        """Return the share of a cost saved by a choice, as the sum over options."""
        return sum(option.saved.get(cost, 0.0) for option in self._taken(chosen))

    def score(self, chosen: Mapping[str, str]) -> float:
        """Return the sum of a choice's scores."""
        return sum(option.score for option in self._taken(chosen))

    def _taken(self, chosen: Mapping[str, str]) -> Iterator[Option]:
        return (one for site, name in chosen.items() for one in self.options[site] if one.name == name)

    def _solved(
        self,
        prices: Mapping[str, float],
        need: Mapping[str, float],
        near: tuple[Chosen, int] | None,
        capped: tuple[str, float] | None = None,
    ) -> Chosen | None:
        """Return the choice of least score, or of least price with given prices; None if no choice saves enough.

        Args:
            prices: Price of savings, by cost.
            need: Shares to remove, by cost.
            near: Earlier choice and number of changes, as in `solve`.
            capped: Cost with a largest share to remove, and the share; further costs may exceed their need.
        """
        keys = [(site, option) for site, own in self.options.items() for option in own]
        scores = np.array([option.score for _, option in keys])
        able = np.isfinite(scores)
        scores = np.where(able, scores, 0.0)
        if prices:
            scores = np.array([sum(price * o.saved.get(cost, 0.0) for cost, price in prices.items()) for _, o in keys])
        rows = [
            _Row(
                {n: o.saved.get(cost, 0.0) for n, (_, o) in enumerate(keys)},
                share,
                share + OVER if self.exact else capped[1] if capped is not None and cost == capped[0] else np.inf,
            )
            for cost, share in need.items()
        ]
        for site in self.options:
            rows.append(_Row({n: 1.0 for n, (own, _) in enumerate(keys) if own == site}, 1, 1))
        for pair in self.holds:
            changed = (n for n, (site, o) in enumerate(keys) if site in pair and o.name != self.options[site][0].name)
            rows.append(_Row(dict.fromkeys(changed, 1.0), high=1))
        for own in self.lists:
            taken = {n: 1.0 for n, (site, option) in enumerate(keys) if site in own and option.gone}
            rows.append(_Row(taken, high=len(own) - 1))
        if near is not None:
            chosen, most = near
            rows.append(_Row({n: 1.0 for n, (site, o) in enumerate(keys) if chosen[site] != o.name}, high=most))
        more = self._equal(keys, rows)
        columns = len(keys) + more
        result = milp(
            # the solver's own tolerance is absolute
            np.concatenate([scores / (np.abs(scores).max(initial=0.0) or 1.0), np.zeros(more)]),
            constraints=_limits(rows, columns),
            integrality=np.ones(columns),
            bounds=Bounds(0, np.concatenate([able.astype(float), np.ones(more)])),
            options={"time_limit": SECONDS, "mip_rel_gap": GAP},
        )
        if result.x is None:
            return None
        takes = result.x[: len(keys)]
        return {site: option.name for (site, option), own in zip(keys, takes, strict=True) if own > 0.5}

    def _equal(self, keys: Sequence[tuple[str, Option]], rows: list[_Row]) -> int:
        """Add rows for equal sizes of alike sites, and return the number of columns for the common size."""
        column = len(keys)
        for sites in self.alike:
            names = dict.fromkeys(o.name for site, o in keys if site in sites and not o.gone)
            rows.append(_Row({column + n: 1.0 for n in range(len(names))}, 1, 1))
            for number, (site, option) in enumerate(keys):
                if site in sites and not option.gone:
                    rows.append(_Row({number: 1.0, column + [*names].index(option.name): -1.0}, high=0))
            column += len(names)
        return column - len(keys)


@dataclass(frozen=True)
class _Row:
    """A linear constraint.

    Attributes:
        of: Coefficients, by column.
        low: Least value.
        high: Largest value.
    """

    of: Mapping[int, float]
    low: float = -np.inf
    high: float = np.inf


def _limits(rows: Sequence[_Row], columns: int) -> LinearConstraint:
    entries = [(row, column, value) for row, own in enumerate(rows) for column, value in own.of.items()]
    at, columns_at, values = zip(*entries, strict=True) if entries else ((), (), ())
    matrix = coo_array((values, (at, columns_at)), shape=(len(rows), columns))
    return LinearConstraint(matrix.tocsr(), [row.low for row in rows], [row.high for row in rows])
