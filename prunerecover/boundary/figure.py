"""Picture of an accuracy map: the runs, the prediction, the feasible splits and the pick.

A map of runs along a line is drawn as accuracy over the removed attentions, with a band of uncertainty; a map of the
plane as contours over both removed numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from prunerecover.boundary.accuracy_map import AccuracyMap
from prunerecover.boundary.designs import Split
from prunerecover.boundary.map_points import Pick, kept_fractions
from prunerecover.display.style import BLACK, BLUE, LIGHT, SKY, VERMILION, add_heading, add_legend, new_figure

DRAWS = 2000
PIXELS = 81  # along each side of the contour grid
POINT: dict[str, Any] = {"linestyle": "none", "markeredgewidth": 1.1, "zorder": 5, "clip_on": False}
RUN: dict[str, Any] = {**POINT, "marker": "o", "markersize": 6.5, "color": "white", "markeredgecolor": BLACK}
PICK: dict[str, Any] = {**POINT, "marker": "*", "markersize": 16, "color": VERMILION, "markeredgecolor": "white"}


def plot_map(fitted: AccuracyMap, splits: Sequence[Split], pick: Pick | None = None) -> Figure:
    """Draw a map.

    Args:
        fitted: Map from `fit_map`.
        splits: Feasible splits of a budget, in order.
        pick: Best split, from `fitted.best`.

    Raises:
        ValueError: If there is no split, or the map is for the line of another budget.
    """
    if not splits:
        raise ValueError("Expected at least one feasible split to draw, but got none. `feasible_splits` lists them.")
    figure, axes = new_figure(6.4, 4.4)
    if getattr(fitted.surface, "line", None) is None:
        _draw_plane(figure, axes, fitted, splits, pick)
    else:
        _draw_line(axes, fitted, splits, pick)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("Attentions removed")
    if pick is not None:
        add_heading(figure, _describe(pick))
    handles, labels = axes.get_legend_handles_labels()
    add_legend(figure, handles, labels, "upper left")
    return figure


def _draw_line(axes: Axes, fitted: AccuracyMap, splits: Sequence[Split], pick: Pick | None) -> None:
    kept = kept_fractions(splits, fitted.layers)
    drawn = fitted.surface.draw(kept, DRAWS, np.random.default_rng(fitted.seed))
    low, high = np.quantile(drawn, (0.025, 0.975), axis=0)
    removed = [attention for attention, _ in splits]
    axes.fill_between(removed, low, high, color=SKY, alpha=0.35, linewidth=0, label="95% band")
    axes.plot(removed, fitted.surface.predict(kept), color=BLUE, linewidth=1.8, label="predicted")
    runs = [point for point in fitted.points if point.split != (0, 0)]
    axes.plot([run.attention for run in runs], [run.accuracy for run in runs], label="runs", **RUN)
    if pick is not None:
        axes.plot([pick.attention], [pick.predicted], label="pick", **PICK)
    if fitted.dense is not None:
        axes.axhline(fitted.dense, color=BLACK, linewidth=1, linestyle=(0, (6, 3)), label="dense", zorder=1)
    axes.grid(axis="y", color=LIGHT, linewidth=0.8)
    axes.set_ylabel("Accuracy (%)")


def _draw_plane(figure: Figure, axes: Axes, fitted: AccuracyMap, splits: Sequence[Split], pick: Pick | None) -> None:
    shown = np.array([*splits, *(run.split for run in fitted.points)])
    reach = np.minimum(shown.max(axis=0) + 0.5, fitted.layers)
    x, y = np.meshgrid(np.linspace(0, reach[0], PIXELS), np.linspace(0, reach[1], PIXELS))
    kept = kept_fractions(np.column_stack([x.ravel(), y.ravel()]), fitted.layers)
    height = fitted.surface.predict(kept).reshape(x.shape)
    colours = axes.contourf(x, y, height, levels=14, cmap="cividis")
    figure.colorbar(colours, ax=axes, label="Predicted accuracy (%)", pad=0.02)
    axes.plot(*zip(*splits, strict=True), color=BLACK, linewidth=1.6, linestyle=(0, (4, 2)), label="feasible")
    axes.plot(*zip(*(run.split for run in fitted.points), strict=True), label="runs", **RUN)
    if pick is not None:
        axes.plot([pick.attention], [pick.activation], label="pick", **PICK)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylabel("Activations removed")


def _describe(pick: Pick) -> str:
    split = f"{pick.attention} attentions and {pick.activation} activations removed"
    return f"{split}: {pick.predicted:.1f}%, likely at most {pick.regret.high:.1f} below the best"
