"""Picture of sensitivity: what each unit or group saves beside what it matters; what goes first lies low and right."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from prunerecover.display.style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    VERMILION,
    empty_figure,
    styled,
)
from prunerecover.plan.kinds import TRAITS
from prunerecover.sensitivity_table.rows import GroupRow, UnitRow

DEPTH_COLORS = {"block": VERMILION, "attention": BLUE, "mlp": GREEN, "activation": PURPLE, "layer": ORANGE}
NAMED = 5  # points of a panel that bear their names: those that matter least for what they save
Point = tuple[str, str, float, float]  # name, kind, share of MACs, what it matters


def plot_sensitivity(units: Sequence[UnitRow], groups: Sequence[GroupRow]) -> Figure:
    """Draw a panel for depth and one for width, of those that have rows.

    Args:
        units: Of depth; those that cannot go, or save nothing, are left out.
        groups: Of width, at half of their units.
    """
    depth = _shown([(row.name, row.kind, row.macs, row.divergence) for row in units])
    width = _shown([(row.name, row.kind, row.macs, row.saliency[1]) for row in groups])
    both = ((depth, "each unit alone", "divergence of the output"), (width, "half of each group", "share of saliency"))
    panels = [panel for panel in both if panel[0]]
    figure = empty_figure(5.2 * max(len(panels), 1), 4.0)
    for number, (points, what, label) in enumerate(panels, 1):
        axes = styled(figure.add_subplot(1, len(panels), number))
        _scatter(axes, points)
        axes.set_xlabel(f"MACs that go with {what}, %", fontsize=9)
        axes.set_ylabel(label, fontsize=9)
    return figure


def _shown(points: Sequence[Point]) -> list[Point]:
    return [point for point in points if point[2] > 0 and math.isfinite(point[3]) and point[3] > 0]


def _scatter(axes: Axes, points: Sequence[Point]) -> None:
    for kind in dict.fromkeys(kind for _, kind, *_ in points):
        own = [point for point in points if point[1] == kind]
        color = DEPTH_COLORS.get(kind, TRAITS[kind].color)
        across, up = [100 * saved for *_, saved, _ in own], [matters for *_, matters in own]
        axes.scatter(across, up, s=22, color=color, label=kind, alpha=0.85, linewidths=0)
    for name, _, saved, matters in sorted(points, key=lambda point: point[3] / point[2])[:NAMED]:
        axes.annotate(name, (100 * saved, matters), (4, 3), textcoords="offset points", fontsize=7, color=GREY)
    axes.set_yscale("log")
    axes.legend(frameon=False, fontsize=8.5)
