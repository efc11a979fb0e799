"""Curves of benchmarks: a figure of each method over the remaining or removed share, the mean over seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from benchmarks.runner.page import grouped
from benchmarks.runner.rows import Row
from prunerecover.display.style import GREY

Style = tuple[str, str, str]  # label, colour, marker


def draw_curves(
    axes: Axes,
    rows: Sequence[Row],
    along: Callable[[Row], float],
    styles: Mapping[str, Style],
    ours: str,
    dense: float,
) -> None:
    """Draw top-1 in percent, a line for each method, and a dotted line for the dense network.

    Args:
        axes: Axes of a picture.
        rows: Rows to draw, with figures as shares.
        along: Function from a row to the horizontal position.
        styles: Label, colour and marker by method.
        ours: Method with the broad line.
        dense: Top-1 of the dense network.
    """
    axes.axhline(100 * dense, color=GREY, linewidth=1, linestyle=":")
    place: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "va": "bottom", "color": GREY, "fontsize": 9}
    axes.text(0.01, 100 * dense, "dense", **place)
    for method, (label, color, marker) in styles.items():
        points = [_point(own, along) for own in grouped([r for r in rows if r.method == method], ("budget",))]
        if points:
            x, y, bars = zip(*sorted(points), strict=True)
            width = 2.2 if method == ours else 1.1
            how: dict[str, Any] = {"color": color, "marker": marker, "markersize": 5, "linewidth": width}
            axes.errorbar(x, y, yerr=np.transpose(bars), label=label, **how)
    axes.set_ylabel("top-1, %")


def _point(rows: Sequence[Row], along: Callable[[Row], float]) -> tuple[float, float, tuple[float, float]]:
    """Return position, mean, and the interval's extent below and above it, zero with several seeds."""
    found = [row.figures["top1"] for row in rows]
    value, (first, *others) = float(np.mean([one.value for one in found])), found
    ends = (0.0, 0.0) if others or first.low is None or first.high is None else (value - first.low, first.high - value)
    return float(np.mean([along(row) for row in rows])), 100 * value, (100 * ends[0], 100 * ends[1])
