"""Picture of sensitivity over depth: what each unit or group matters for what it saves; what goes first lies low."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from prunerecover.display.style import BLUE, GREEN, ORANGE, PURPLE, VERMILION, empty_figure, styled
from prunerecover.plan.kinds import TRAITS
from prunerecover.sensitivity_table.rows import GroupRow, UnitRow

DEPTH_COLORS = {"block": VERMILION, "attention": BLUE, "mlp": GREEN, "activation": PURPLE, "layer": ORANGE}
NAMED = 12  # points that bear their names below the axis
Point = tuple[str, str, float]  # name, kind, what it matters per 1% of the MACs


def plot_sensitivity(units: Sequence[UnitRow], groups: Sequence[GroupRow]) -> Figure:
    """Draw a panel for depth and one for width, of those that have rows.

    Args:
        units: Of depth, in order of depth; those that cannot go, or save no MACs, are left out.
        groups: Of width, at half of their units; experts save no MACs.
    """
    depth = [(row.name, row.kind, row.divergence / (100 * row.macs)) for row in units if row.macs > 0]
    width = [(row.name, row.kind, row.saliency[1] / row.macs) for row in groups if row.macs > 0]
    labels = "divergence per 1% of the MACs, each unit alone", "saliency per MACs, half of each group, both in %"
    panels = [(shown, label) for shown, label in zip(map(_shown, (depth, width)), labels, strict=True) if shown]
    figure = empty_figure(8.0, 3.4 * max(len(panels), 1))
    for number, (points, label) in enumerate(panels, 1):
        axes = styled(figure.add_subplot(len(panels), 1, number))
        _scatter(axes, points)
        axes.set_ylabel("\n".join(label.split(", ", 1)), fontsize=9)
    return figure


def _shown(points: Sequence[Point]) -> list[Point]:
    return [point for point in points if 0 < point[2] < math.inf]


def _scatter(axes: Axes, points: Sequence[Point]) -> None:
    for kind in dict.fromkeys(kind for _, kind, _ in points):
        own = [(place, matters) for place, (_, other, matters) in enumerate(points) if other == kind]
        color = DEPTH_COLORS.get(kind, TRAITS[kind].color)
        axes.plot(*zip(*own, strict=True), "o-", ms=4, lw=0.8, color=color, label=kind)
    step = -(-len(points) // NAMED)
    axes.set_xticks(range(0, len(points), step), [name for name, *_ in points][::step], rotation=35, ha="right")
    axes.tick_params(axis="x", labelsize=7.5)
    axes.set_yscale("log")
    axes.legend(frameon=False, fontsize=8.5, ncols=len(DEPTH_COLORS))
