"""Weighted least squares over streaming tokens: per channel, and from all channels to all."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from prunerecover.calibration.moments import CentredSums, covariance, solve_ridge
from prunerecover.files.held_tensors import all_held


class ChannelRegression:
    """Per-channel weighted regression of an activation's output on its input.

    Minimises sum_t w_t (slope x_t + bias - y_t)^2 for each of C channels.
    """

    def __init__(self) -> None:
        self._sums = CentredSums()

    def add(self, x: Tensor, y: Tensor, weight: Tensor) -> None:
        """Add tokens.

        Args:
            x: Inputs of the activation, `(T, C)`.
            y: Outputs of the activation, `(T, C)`.
            weight: Weight of each token, `(T,)`.
        """
        x, y = self._sums.centred(x, y)
        w = weight.float()
        self._sums.add(w=w.sum(), x=w @ x, y=w @ y, xx=w @ (x * x), xy=w @ (x * y))

    def solve(self) -> tuple[Tensor, Tensor]:
        """Return slope and bias, `(C,)` each, in double precision; constant channels get slope 0."""
        s, (origin_x, origin_y) = self._sums.means()
        variance = s["xx"] - s["x"] ** 2
        together = s["xy"] - s["x"] * s["y"]
        floor = 1e-9 * (variance.clamp_min(0).mean() + (origin_x + s["x"]).square().mean()) + 1e-30
        slope = torch.where(variance > floor, together / variance.clamp_min(floor), torch.zeros_like(variance))
        return slope, origin_y + s["y"] - slope * (origin_x + s["x"])


class AffineRegression:
    """Weighted ridge regression of Y `(T, D)` on X `(T, C)` with an intercept, shrunk towards a given map.

    Minimises sum_t w_t |W x_t + b - y_t|^2 / sum_t w_t + ridge * s |W - W0|^2, where s is the mean weighted
    variance of X. The intercept is not penalised.
    """

    def __init__(self) -> None:
        self._sums = CentredSums()

    def add(self, x: Tensor, y: Tensor, weight: Tensor) -> None:
        """Add tokens.

        Args:
            x: Rows of X, `(T, C)`.
            y: Rows of Y, `(T, D)`.
            weight: Weight of each token, `(T,)`.
        """
        x, y = self._sums.centred(x, y)
        w = weight.float()
        wx = w[:, None] * x
        self._sums.add(w=w.sum(), x=wx.sum(0), y=w @ y, xx=wx.T @ x, yx=y.T @ wx)

    @property
    def sums(self) -> tuple[dict[str, Tensor], tuple[Tensor, ...]]:
        """Sums over the tokens by name, and the origins of X and Y, for `join`."""
        return self._sums.values, self._sums.origins

    def join(self, values: Mapping[str, Tensor], origins: tuple[Tensor, ...]) -> None:
        """Add the tokens of another regression, by its sums.

        Args:
            values: Sums over its tokens, by name.
            origins: Origins of its X and Y.
        """
        self._sums.origins = self._sums.origins or origins
        w, x, y = (values[name] for name in ("w", "x", "y"))
        dx, dy = (its.double() - own.double() for its, own in zip(origins, self._sums.origins, strict=True))
        xx = values["xx"] + torch.outer(dx, x) + torch.outer(x + w * dx, dx)
        yx = values["yx"] + torch.outer(dy, x) + torch.outer(y + w * dy, dx)
        self._sums.add(w=w, x=x + w * dx, y=y + w * dy, xx=xx, yx=yx)

    def solve(
        self, ridge: float, prior: Tensor | None, *, constant: bool = True, features: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return W `(D, C)` and b `(D,)` in double precision.

        Args:
            ridge: Strength relative to the mean variance of X; infinity returns the prior's W.
            prior: W0, `(D, C)`; None: zero.
            constant: Whether to fit a constant; False: b is zero, and moments are about zero.
            features: Regressors: numbers `(n,)` of entries of X, or linear maps `(n, C)` of X; None: all entries.
        """
        s, (origin_x, origin_y) = self._sums.means()
        mean_x, mean_y = origin_x + s["x"], origin_y + s["y"]
        among, cross = covariance(s), covariance(s, "y", "x")
        if features is not None and features.ndim == 2:
            maps = features.to(among)
            among, cross, mean_x = maps @ among @ maps.T, cross @ maps.T, maps @ mean_x
        elif features is not None:
            own = features.to(among.device)
            among, cross = among.index_select(0, own).index_select(1, own), cross.index_select(1, own)
            mean_x = mean_x.index_select(0, own)
        weight = torch.zeros_like(cross) if prior is None else prior.to(cross)
        if ridge != float("inf"):
            if not constant:
                among, cross = among + torch.outer(mean_x, mean_x), cross + torch.outer(mean_y, mean_x)
            penalty = ridge * among.diagonal().mean() + 1e-12
            weight = weight + solve_ridge(among, cross - weight @ among, penalty)
        return weight, mean_y - weight @ mean_x if constant else torch.zeros_like(mean_y)

    def hold(self) -> None:
        """Hold the sums for later use; see `held_tensors`."""
        self._sums.values = all_held(self._sums.values)

    def second_moment(self) -> Tensor:
        """Return the second moment of X with a constant 1 appended, `(C + 1, C + 1)`."""
        s, (origin, _) = self._sums.means()
        mean = origin + s["x"]
        whole = covariance(s) + torch.outer(mean, mean)
        return torch.cat([torch.cat([whole, mean[:, None]], 1), torch.cat([mean, mean.new_ones(1)])[None]])
