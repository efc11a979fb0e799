"""Moments of a station, from which the fits of all its variants follow."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from prunerecover.calibration.regression import AffineRegression
from prunerecover.library.stations import Seen

RIDGE = 0.01  # of replacements, relative to the mean variance of what is read
READER = 1e-2, 0.1  # of readers: always, and times the features per row
ROWS = 40  # of a fit, per feature that is read, at most

Fitted = dict[str, Tensor]  # "weight" and "bias" of a linear, or of a replacement


class StationMoments:
    """Sums over calibration samples of what a branch reads, and of what it has to give.

    The branch has to give what leads from the stream of the pruned network before it to that of the dense one behind.

    Args:
        step: Every so many rows are taken.
    """

    def __init__(self, step: int = 1) -> None:
        self.step, self.rows = step, 0
        self.read, self.entered = AffineRegression(), AffineRegression()

    def add(self, now: Seen, total: Tensor, weight: Tensor | None = None) -> None:
        """Add a batch.

        Args:
            now: What the pruned network shows, the site as it is.
            total: Stream of the dense network behind the branch.
            weight: How much each row counts; None: all alike.
        """
        rows = slice(None, None, self.step)
        target = (now.given.float() + total.float() - now.total.float())[rows]
        weight = torch.ones(len(now.read)) if weight is None else weight
        weight = weight[rows].to(target)
        self.rows += len(target)
        self.read.add(now.read[rows], target, weight)
        self.entered.add(now.entered[rows], target, weight)

    def reader(self, features: Tensor, dense: nn.Linear) -> Fitted:
        """Fit the last linear to features of what it reads, shrunk towards what it was.

        Args:
            features: Numbers of those that stay `(k,)`, or linear maps of all of them `(k, n)`.
            dense: The linear as it was.
        """
        before, bias = dense.weight.detach().double().cpu(), dense.bias is not None
        prior = before @ torch.linalg.pinv(features) if features.ndim == 2 else before[:, features]
        ridge = READER[0] + READER[1] * len(features) / max(1, self.rows)
        weight, shift = self.read.solve(ridge, prior, constant=bias, features=features)
        return {"weight": weight.float(), **({"bias": shift.float()} if bias else {})}

    def replacement(self, leaves: str) -> Fitted:
        """Fit what stands for the branch: "affine", a map of what enters it, or "constant"."""
        weight, bias = self.entered.solve(RIDGE if leaves == "affine" else float("inf"), None)
        return {"weight": weight.float(), "bias": bias.float()} if leaves == "affine" else {"bias": bias.float()}
