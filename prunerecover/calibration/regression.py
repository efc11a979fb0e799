"""Streaming weighted least squares: the sums grow with the widths squared, never with the number of tokens.

Rows are taken relative to the mean of the first batch, so that products in single precision lose nothing to
cancellation; sums are kept in double precision.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class _Sums:
    """Weighted sums by name, and the origins of x and y."""

    values: dict[str, Tensor] = field(default_factory=dict)
    origin: tuple[Tensor, Tensor] | None = None

    def centred(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x, y = x.float(), y.float()
        if self.origin is None:
            self.origin = (x.mean(0), y.mean(0))
        return x - self.origin[0], y - self.origin[1]

    def add(self, **terms: Tensor) -> None:
        for name, term in terms.items():
            self.values[name] = self.values[name] + term.double() if name in self.values else term.double()

    def moments(self) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """Return the weighted means of the terms and the origins in double precision."""
        if self.origin is None:
            raise RuntimeError("Expected rows to fit to, but none were added. Call add() before solve().")
        total = self.values["w"]
        means = {name: value / total for name, value in self.values.items() if name != "w"}
        return means, self.origin[0].double(), self.origin[1].double()


class ChannelRegression:
    """Per-channel weighted regression of an activation's output on its input.

    Minimises sum_t w_t (slope x_t + bias - y_t)^2 for each of C channels.
    """

    def __init__(self) -> None:
        self._sums = _Sums()

    def add(self, x: Tensor, y: Tensor, weight: Tensor) -> None:
        """Add tokens.

        Args:
            x: Inputs of the activation, `(T, C)`.
            y: Its outputs, `(T, C)`.
            weight: How much each token counts, `(T,)`.
        """
        x, y = self._sums.centred(x, y)
        w = weight.float()
        self._sums.add(w=w.sum(), x=w @ x, y=w @ y, xx=w @ (x * x), xy=w @ (x * y))

    def solve(self) -> tuple[Tensor, Tensor]:
        """Return slope and bias, `(C,)` each, in double precision; channels that never vary get slope 0."""
        s, origin_x, origin_y = self._sums.moments()
        variance = s["xx"] - s["x"] ** 2
        covariance = s["xy"] - s["x"] * s["y"]
        floor = 1e-9 * (variance.clamp_min(0).mean() + (origin_x + s["x"]).square().mean()) + 1e-30
        slope = torch.where(variance > floor, covariance / variance.clamp_min(floor), torch.zeros_like(variance))
        return slope, origin_y + s["y"] - slope * (origin_x + s["x"])


class AffineRegression:
    """Weighted ridge regression of Y `(T, D)` on X `(T, C)` with an intercept, shrunk towards a given map.

    Minimises sum_t w_t |W x_t + b - y_t|^2 / sum_t w_t + ridge * s |W - W0|^2, where s is the mean weighted
    variance of X. The intercept is not penalised.
    """

    def __init__(self) -> None:
        self._sums = _Sums()

    def add(self, x: Tensor, y: Tensor, weight: Tensor) -> None:
        """Add tokens.

        Args:
            x: Rows of X, `(T, C)`.
            y: Rows of Y, `(T, D)`.
            weight: How much each token counts, `(T,)`.
        """
        x, y = self._sums.centred(x, y)
        w = weight.float()
        wx = w[:, None] * x
        self._sums.add(w=w.sum(), x=wx.sum(0), y=w @ y, xx=wx.T @ x, yx=y.T @ wx)

    def solve(self, ridge: float, prior: Tensor) -> tuple[Tensor, Tensor]:
        """Return W `(D, C)` and b `(D,)` in double precision.

        Args:
            ridge: Strength relative to the mean variance of X; infinity returns the prior's W.
            prior: W0, `(D, C)`.
        """
        s, origin_x, origin_y = self._sums.moments()
        weight = prior.to(s["xx"])
        if ridge != float("inf"):
            covariance = s["xx"] - torch.outer(s["x"], s["x"])
            cross = s["yx"] - torch.outer(s["y"], s["x"])
            penalty = ridge * covariance.diagonal().mean() + 1e-12
            system = covariance + penalty * torch.eye(len(covariance)).to(covariance)
            weight = weight + torch.linalg.solve(system, (cross - weight @ covariance).T).T
        return weight, origin_y + s["y"] - weight @ (origin_x + s["x"])
