"""Tolerance of Difference (ToD): the depth of pruning in a group before important units go (arXiv 2508.02291).

One importance proposes the m lowest units, another importance the m highest units to keep. ToD(m) is the share of the m
units in both sets, and a group loses the largest m <= floor(0.99 n) with ToD(m) <= tolerance. Tested facts: ToD is not
monotone in m; the depth is monotone in the tolerance; the overlap is at least 2m - n, so the depth is at most n / (2 -
tolerance); independent importances have E[ToD(m)] = m / n.

The bounds on the loss are our own derivation from ranks; the exchange condition follows the paper's abstract.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from prunerecover.importance.measuring.unit_slices import Scores
from prunerecover.plan.evidence import UniformComparison


def tolerance_of_difference(low: Tensor, high: Tensor) -> Tensor:
    """Return ToD(1), ..., ToD(n), in O(n) after sorting.

    A unit is in both sets of size m if both its ranks (by `low`, lowest first; by `high`, highest first) are below m; a
    cumulative count of the larger rank gives all overlaps at once. Ties go to the lower index.

    Args:
        low: Scores `(n,)`, low goes first.
        high: Scores `(n,)`, high is protected first.

    Returns:
        `(n,)`, float64; entry m - 1 is ToD(m).

    Raises:
        ValueError: If the scores are not vectors of equal length.

    >>> tolerance_of_difference(torch.tensor([1.0, 2, 3, 4]), torch.tensor([4.0, 1, 3, 2]))
    tensor([1.0000, 0.5000, 0.6667, 1.0000], dtype=torch.float64)
    """
    if low.ndim != 1 or low.shape != high.shape:
        raise ValueError(f"Expected two scores per unit, but got shapes {tuple(low.shape)} and {tuple(high.shape)}.")
    orders = low.argsort(stable=True), high.argsort(descending=True, stable=True)
    enters = torch.maximum(*(order.argsort() for order in orders))  # ranks
    sizes = torch.arange(1, len(low) + 1, dtype=torch.float64)
    return torch.bincount(enters, minlength=len(low)).cumsum(0) / sizes


def depth_of(curve: Tensor, tolerance: float) -> int:
    """Return the largest m <= floor(0.99 n) with ToD(m) <= tolerance, given ToD(1), ..., ToD(n).

    Args:
        curve: ToD, as of `tolerance_of_difference`.
        tolerance: Tolerance in [0, 1]; 0 removes all units before the first unit in both sets.

    >>> depth_of(torch.tensor([0.0, 0.5, 0.33, 0.5, 1.0]), 0.4)
    3
    """
    within = (curve[: len(curve) * 99 // 100] <= tolerance).nonzero()
    return int(within[-1]) + 1 if len(within) else 0


def check_tolerance(tolerance: float) -> None:
    """Raise ValueError unless the tolerance is a share."""
    if not 0 <= tolerance <= 1:
        raise ValueError(f"Expected a tolerance between 0 and 1, but got {tolerance}. 0.05 to 0.5 is usual.")


def protected_mass(low: Tensor, high: Tensor, m: int) -> tuple[float, float]:
    """Return the loss of `high` with the `m` lowest units by `low`, and its bound from ranks alone.

    With overlap c, the ranks allow c of the m highest scores to go, at worst the c highest. At ToD(m) <= tolerance, c
    is at most tolerance * m.

    Args:
        low: Scores `(size,)`, low goes first.
        high: Scores `(size,)`, high stays.
        m: Number of removed units.
    """
    by_low, by_high = low.argsort(stable=True), high.argsort(descending=True, stable=True)
    lost, ranked = by_low[:m], high[by_high].double()
    both = lost[torch.isin(lost, by_high[:m])]
    return float(high[both].double().sum()), float(ranked[: len(both)].sum())


def exchange(low: Scores, high: Scores, depth: Mapping[str, int], other: Mapping[str, int]) -> UniformComparison:
    """Compare two choices of depths, ToD's and uniform depths at the same budget, by the scores of `high`.

    Both remove the lowest units by the same importance, so they differ in a stretch of each group's ranking: a deeper
    first choice takes the stretch, a shallower one spares the stretch. The first choice is better if the taken scores
    sum to less than the spared scores. These scores alone decide the comparison.

    Args:
        low: Scores `(size,)` by group name, low goes first.
        high: Scores `(size,)` by group name, high stays.
        depth: Number of units removed by the first choice, by group name.
        other: Number of units removed by the second choice, by group name.
    """
    taken = spared = 0.0
    for name, scores in low.items():
        mass = high[name].double()[scores.argsort(stable=True)]
        taken += float(mass[other[name] : depth[name]].sum())
        spared += float(mass[depth[name] : other[name]].sum())
    return UniformComparison(taken=taken, spared=spared)
