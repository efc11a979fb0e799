"""Picture of the two rankings weighed by a plan with Tolerance of Difference, group by group."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from prunerecover.display.style import BLUE, GREY, LIGHT, VERMILION, add_legend, empty_figure, styled
from prunerecover.plan.edits import Narrow
from prunerecover.width.allocation.tolerance import tolerance_of_difference

if TYPE_CHECKING:
    from prunerecover.plan.plan import Plan


SHOWN = 9  # groups in a figure of rankings
NAME = 28  # letters of a group's name on a line


def plot_rankings(
    plan: Plan,
    low: Mapping[str, Tensor],
    high: Mapping[str, Tensor],
    names: tuple[str, str] = ("first importance", "second importance"),
) -> Figure:
    """Draw the units of groups by rank in both rankings, with the units removed by a plan by tolerance.

    Up to nine groups are drawn, evenly spaced in depth. Units on the left go first, units on top are better protected.
    Removed units lie left of the line; removed units in the shaded corner are also among the equally many most
    protected units, and the share of the corner is ToD.

    Args:
        plan: Plan for the dense model, with each group narrowed once.
        low: Scores `(size,)` by group name, low goes first; for groups with strata see `removal_positions`.
        high: Scores `(size,)` by group name, high is protected.
        names: Names of the two importances.

    Raises:
        ValueError: If the plan narrows no scored group.
    """
    narrowed = {edit.unit: edit for edit in plan.edits if isinstance(edit, Narrow) and edit.unit in low}
    chosen = _spread(list(narrowed), SHOWN)
    if not chosen:
        raise ValueError("Expected groups that the plan narrows and that are scored, but got no group.")
    columns = min(3, len(chosen))
    lines = math.ceil(len(chosen) / columns)
    figure = empty_figure(max(2.3 * columns + 0.6, 4.6), 2.35 * lines + 0.75)
    grid = figure.subplots(lines, columns, squeeze=False)
    for axes, name in zip(grid.flat, chosen, strict=False):
        _draw_rankings(styled(axes), narrowed[name], low[name], high[name])
    for axes in grid.flat[len(chosen) :]:
        axes.remove()
    figure.supxlabel(f"Rank by {names[0]}: lowest first", fontsize=9)
    figure.supylabel(f"Rank by {names[1]}: highest on top", fontsize=9)
    _explain_rankings(figure)
    return figure


def _draw_rankings(axes: Axes, edit: Narrow, low: Tensor, high: Tensor) -> None:
    gone = list(edit.gone)
    depth = len(gone)
    across, up = _ranks(low), _ranks(-high)
    left = np.setdiff1d(np.arange(edit.of), gone)
    size = float(np.clip(260 / edit.of, 3, 26))
    style: dict[str, Any] = {"s": size, "linewidth": 0, "clip_on": False, "zorder": 3}
    axes.add_patch(Rectangle((-0.5, -0.5), depth, depth, facecolor=LIGHT, edgecolor="none", zorder=1))
    axes.axvline(depth - 0.5, color=GREY, linewidth=1, linestyle=(0, (4, 2)), zorder=2)
    axes.scatter(across[left], up[left], color=BLUE, **style)
    axes.scatter(across[gone], up[gone], color=VERMILION, **style)
    edge = 0.02 * edit.of + 0.5
    axes.set_xlim(-edge, edit.of - 1 + edge)
    axes.set_ylim(edit.of - 1 + edge, -edge)
    axes.set_aspect("equal")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(4, integer=True))
    axes.tick_params(labelsize=7)
    met = float(tolerance_of_difference(low, high)[depth - 1])
    axes.set_title(f"{textwrap.fill(edit.unit, NAME)}\n{depth} of {edit.of} go, ToD {met:.2f}", fontsize=8, loc="left")


def _ranks(scores: Tensor) -> np.ndarray:
    """Return the rank of every unit in ascending order; ties go by number."""
    return np.asarray(scores.argsort(stable=True).argsort().tolist())


def _explain_rankings(figure: Figure) -> None:
    dot: dict[str, Any] = {"linestyle": "none", "marker": "o", "markersize": 5}
    handles = [
        Line2D([], [], color=VERMILION, label="removed", **dot),
        Line2D([], [], color=BLUE, label="kept", **dot),
        Patch(facecolor=LIGHT, label="removed, yet protected"),
    ]
    add_legend(figure, handles, [str(handle.get_label()) for handle in handles], "upper left")


def _spread(names: list[str], most: int) -> list[str]:
    """Return at most `most` names, evenly spaced, including the first and the last."""
    if len(names) <= most:
        return names
    return [names[round(i * (len(names) - 1) / (most - 1))] for i in range(most)]
