"""First and second moments of streaming rows, and linear fits.

Memory grows with the widths squared, never with the number of rows. Rows are taken relative to the mean of the first
batch, against cancellation in single precision; sums are in double precision.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

LARGEST = 4096  # entries of a dimension; larger second moments would not fit into memory
VANISHING = 1e-36  # smaller variances keep too few digits in single precision for a fit
RIDGE = 1e-3, 0.1  # relative to the mean variance: a constant part, and a part times kept entries per sample


@dataclass
class CentredSums:
    """Weighted sums over rows, by name, and the origins of the rows.

    Args:
        device: Device of the sums; None: the rows' device.
    """

    device: str | None = None
    values: dict[str, Tensor] = field(default_factory=dict)
    origins: tuple[Tensor, ...] = ()

    def centred(self, *rows: Tensor) -> tuple[Tensor, ...]:
        """Return rows `(T, .)` relative to the origins, in single precision."""
        rows = tuple(each.float() for each in rows)
        self.origins = self.origins or tuple(each.mean(0) for each in rows)
        return tuple(each - origin for each, origin in zip(rows, self.origins, strict=True))

    def add(self, **terms: Tensor) -> None:
        """Add to the sums; "w" is the sum of the weights."""
        for name, term in terms.items():
            term = term.to(self.device, torch.float64)
            self.values[name] = self.values[name] + term if name in self.values else term

    def means(self) -> tuple[dict[str, Tensor], tuple[Tensor, ...]]:
        """Return the weighted means of the terms, and the origins, in double precision.

        Raises:
            RuntimeError: If no rows were added.
        """
        if not self.origins:
            raise RuntimeError("Expected rows to fit to, but none were added. Call add() first.")
        total = self.values["w"]
        means = {name: value / total for name, value in self.values.items() if name != "w"}
        return means, tuple(origin.to(total) for origin in self.origins)


def covariance(means: Mapping[str, Tensor], first: str = "x", second: str = "x") -> Tensor:
    """Return the covariance of two sides, from the means of both ("x", "y") and of their products ("xx", "yx").

    Args:
        means: `(C,)` under "x" and "y", and `(C, D)` under the names of products.
        first: The side of the rows.
        second: The side of the columns.
    """
    return means[first + second] - torch.outer(means[first], means[second])


def solve_ridge(among: Tensor, cross: Tensor, penalty: Tensor) -> Tensor:
    """Return the ridge regression `(D, C)` of D targets on C regressors.

    Args:
        among: Covariance of the regressors, `(C, C)`.
        cross: Covariance of the targets with the regressors, `(D, C)`.
        penalty: A scalar.
    """
    system = among + penalty * torch.eye(len(among)).to(among)
    solved: Tensor = torch.linalg.solve(system, cross.T)
    return solved.T


class Moments:
    """First and second moments of a module's inputs, summed on the CPU, and predictions among the entries.

    >>> moments = Moments()
    >>> moments.add(torch.tensor([[1.0, 2.0], [2.0, 4.0], [3.0, 6.0]]))
    >>> moments.predict(torch.tensor([1]), torch.tensor([0])).round(decimals=1)
    tensor([[1.9000, 0.1000]], dtype=torch.float64)
    """

    def __init__(self) -> None:
        self._sums = CentredSums("cpu")

    def add(self, rows: Tensor) -> None:
        """Add samples `(n, entries)`."""
        (rows,) = self._sums.centred(rows)
        self._sums.add(w=torch.tensor(len(rows)), x=rows.sum(0), xx=rows.T @ rows)

    def of(self, maps: Tensor) -> tuple[Tensor, Tensor]:
        """Return the means and variances of linear maps `(D, C)` of the first C entries, `(D,)` each."""
        means, (origin,) = self._sums.means()
        maps, among = maps.to(origin), covariance(means)[: maps.shape[1], : maps.shape[1]]
        return maps @ (means["x"] + origin)[: maps.shape[1]], ((maps @ among) * maps).sum(1).clamp(min=0)

    def inverse(self) -> Tensor:
        """Return the inverse of the covariance of all entries, with the penalty of `predict`, `(entries, entries)`."""
        among = covariance(self._sums.means()[0])
        if not among.isfinite().all():  # squares are beyond single precision
            among = torch.zeros_like(among)
        strength = RIDGE[0] + RIDGE[1] * len(among) / self._sums.values["w"]
        ridge = (strength * among.diagonal().mean()).clamp(min=VANISHING)
        found: Tensor = torch.linalg.inv(among + ridge * torch.eye(len(among)).to(among))
        return found

    def predict(self, gone: Tensor, kept: Tensor, *, constant: bool = True) -> Tensor:
        """Return `(gone, kept + 1)`: coefficients of the kept entries, and the constant.

        Args:
            gone: Entries to predict.
            kept: Entries to predict from.
            constant: Whether to fit a constant; False: zero.

        Raises:
            RuntimeError: If no samples were added.
        """
        means, (origin,) = self._sums.means()
        second, mean = covariance(means), means["x"] + origin
        if not constant:  # moments about zero
            second, mean = second + torch.outer(mean, mean), torch.zeros_like(mean)
        among = second[kept][:, kept]
        strength = RIDGE[0] + RIDGE[1] * len(kept) / self._sums.values["w"]
        variance = among.diagonal().mean()
        if variance > VANISHING and second.isfinite().all():
            ridge = strength * variance
            coefficients = solve_ridge(among, second[kept][:, gone].T, ridge)
        else:  # no variance, or squares beyond single precision: only the constant remains
            coefficients = torch.zeros(len(gone), len(kept), dtype=torch.float64)
        return torch.cat([coefficients, (mean[gone] - coefficients @ mean[kept])[:, None]], 1)
