"""Moments of a station, enough to fit all its variants."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from prunerecover.calibration.moments import LARGEST
from prunerecover.calibration.regression import AffineRegression
from prunerecover.library.stations import Seen
from prunerecover.model.linears import is_transposed, linear_shape, matrix_and_bias
from prunerecover.model.narrow.when_used import when_used

RIDGE = 0.3, 3.0  # relative to the mean variance of the inputs: always, and times the features per row
LEAST_SCALE = 1e-6  # of a LayerScale, relative to the largest: outputs of smaller factors do not reach the stream
ROWS = 40  # of a fit, per input feature, at most

Fitted = dict[str, Tensor]  # "weight" and "bias" of a linear, or of a replacement
Sums = tuple[int, Any, Any]  # rows, and the sums of both regressions


class StationMoments:
    """Sums over calibration samples of a branch's inputs and of its wanted outputs.

    The wanted output leads from the stream of the pruned network before the branch to the dense stream behind.

    Args:
        step: Step between the rows taken.
    """

    def __init__(self, step: int = 1) -> None:
        self.step, self.rows = step, 0
        self.read, self.entered = AffineRegression(), AffineRegression()

    def add(self, now: Seen, total: Tensor, weight: Tensor | None = None) -> None:
        """Add a batch.

        Args:
            now: Rows in the pruned network, with the site unchanged.
            total: Stream of the dense network behind the branch.
            weight: Weight of each row; None: equal weights.
        """
        rows = slice(None, None, self.step)
        target = (now.given.float() + total.float() - now.total.float())[rows] / now.factor
        weight = torch.ones(len(now.read)) if weight is None else weight
        weight = weight[rows].to(target)
        self.rows += len(target)
        self.read.add(_few(now.read[rows]), _unscaled(target, now.scale), weight)
        self.entered.add(_few(now.entered[rows]), target, weight)

    @property
    def sums(self) -> Sums:
        """Number of rows, and sums over the rows, for `join`."""
        return self.rows, self.read.sums, self.entered.sums

    def join(self, sums: Sums) -> None:
        """Add the rows of other moments of the station, by their sums."""
        rows, read, entered = sums
        self.rows += rows
        self.read.join(*read)
        self.entered.join(*entered)

    def hold(self) -> None:
        """Hold the sums for later use, when no batch follows; see `held_tensors`."""
        self.read.hold()
        self.entered.hold()

    def reader(self, features: Tensor | None, dense: nn.Module) -> Fitted:
        """Fit the last linear to features of its input, shrunk towards the dense weights.

        A linear with more than `LARGEST` inputs is cut only.

        Args:
            features: Numbers of the features that stay `(k,)`, or linear maps of all features `(k, n)`; None: all,
                before a removed block.
            dense: Linear of the dense network.
        """
        if linear_shape(dense)[0] > LARGEST and features is not None and features.ndim == 1:
            return _cut(dense, features)
        (before, shift), bias = (value.cpu() for value in matrix_and_bias(dense)), isinstance(dense.bias, Tensor)
        features = torch.arange(before.shape[1]) if features is None else features
        weight = before @ torch.linalg.pinv(features) if features.ndim == 2 else before[:, features]
        if before.shape[1] <= LARGEST:
            weight, shift = self.read.solve(self._ridge(len(features)), weight, constant=bias, features=features)
        weight = weight.T.contiguous() if is_transposed(dense) else weight
        return {"weight": weight.float(), **({"bias": shift.float()} if bias else {})}

    def replacement(self, leaves: str) -> Fitted:
        """Fit a replacement of the branch: "affine", a map of the branch's input, or "constant"."""
        if leaves == "constant":
            return {"bias": self.entered.solve(float("inf"), None)[1].float()}
        weight, bias = self.entered.solve(self._ridge(len(self.entered.sums[0]["x"])), None)
        return {"weight": weight.float(), "bias": bias.float()}

    def _ridge(self, features: int) -> float:
        """Return the strength of the shrinkage of a fit to a number of features."""
        return RIDGE[0] + RIDGE[1] * features / max(1, self.rows)


def _cut(dense: nn.Module, features: Tensor) -> Fitted:
    """Return a linear with some of its inputs."""
    weight, dim = dense.get_parameter("weight").detach(), 0 if is_transposed(dense) else 1
    shape = [len(features) if number == dim else size for number, size in enumerate(weight.shape)]
    cut = when_used(lambda: weight.index_select(dim, features.to(weight.device)).cpu().float(), shape, torch.empty(0))
    return {"weight": cut, **({"bias": dense.bias.detach().cpu().float()} if isinstance(dense.bias, Tensor) else {})}


def _few(rows: Tensor) -> Tensor:
    """Return rows without the features, if they are too many for second moments."""
    return rows if rows.shape[-1] <= LARGEST else rows[:, :0]


def _unscaled(target: Tensor, scale: Tensor | None) -> Tensor:
    """Return wanted outputs before a LayerScale; outputs that the scale blocks are wanted to be zero."""
    if scale is None:
        return target
    blocked = scale.abs() <= LEAST_SCALE * scale.abs().max()
    return torch.where(blocked, 0.0, target / scale.float().masked_fill(blocked, 1.0))
