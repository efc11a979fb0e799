"""First and second moments of what enters a layer, and predictions of some of its entries from others."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

LARGEST = 4096  # entries of a dimension; second moments of more would not fit into memory
RIDGE = 1e-3, 0.1  # relative to the mean variance: always, and times the kept entries per sample


@dataclass
class Moments:
    """First and second moments of a module's input entries, added up; relative to the first batch's mean."""

    count: int = 0
    origin: Tensor | None = None
    first: Tensor = field(default_factory=lambda: torch.zeros(1, dtype=torch.float64))
    second: Tensor = field(default_factory=lambda: torch.zeros(1, 1, dtype=torch.float64))

    def add(self, rows: Tensor) -> None:
        """Add samples `(n, entries)`."""
        rows = rows.float()
        if self.origin is None:
            self.origin = rows.mean(0)
        rows = rows - self.origin
        self.count += len(rows)
        self.first = self.first + rows.sum(0).double().cpu()
        self.second = self.second + (rows.T @ rows).double().cpu()

    def predict(self, gone: Tensor, kept: Tensor, *, constant: bool = True) -> Tensor:
        """Return `(gone, kept + 1)`: coefficients of the kept entries, and the constant.

        Args:
            gone: Entries to predict.
            kept: Entries to predict from.
            constant: Whether there may be one; False: it is zero.
        """
        assert self.origin is not None, "something was added"
        mean = self.first / self.count
        covariance = self.second / self.count - torch.outer(mean, mean)
        mean = mean + self.origin.double().cpu()
        if not constant:  # moments about zero
            covariance, mean = covariance + torch.outer(mean, mean), torch.zeros_like(mean)
        among = covariance[kept][:, kept]
        strength = RIDGE[0] + RIDGE[1] * len(kept) / self.count
        ridge = strength * among.diagonal().mean()
        if ridge > 0:
            coefficients = torch.linalg.solve(among + ridge * torch.eye(len(kept)), covariance[kept][:, gone]).T
        else:  # nothing varies: there is only the constant
            coefficients = torch.zeros(len(gone), len(kept), dtype=torch.float64)
        return torch.cat([coefficients, (mean[gone] - coefficients @ mean[kept])[:, None]], 1)
