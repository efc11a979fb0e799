"""Picture of sensitivity over depth: the importance of each unit or group per saved cost, first candidates lowest."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure, FigureBase
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from prunerecover.display.style import (
    BLACK,
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    VERMILION,
    add_heading,
    add_legend,
    bands,
    draw_panels,
    empty_figure,
    heading_height,
    legend_lines,
    styled,
)
from prunerecover.display.unit_grid import shared_prefix
from prunerecover.plan.kinds import TRAITS
from prunerecover.sensitivity_table.rows import GroupRow, UnitRow

DEPTH_COLORS = {"block": VERMILION, "attention": BLUE, "mlp": GREEN, "activation": PURPLE, "layer": ORANGE}
MOST = 60  # points side by side; more go below
STEP, LETTER = 0.16, 0.062  # inches: from one point to the next, and a letter of a name
Point = tuple[str, str, float]  # name, kind, divergence or importance per 1% of the MACs


def plot_sensitivity(units: Sequence[UnitRow], groups: Sequence[GroupRow]) -> Figure:
    """Draw a panel for depth and a panel for width, without empty panels.

    Args:
        units: Units of depth, in order of depth; units without saved MACs are counted in the heading alone.
        groups: Groups of width, at half of their units; groups without saved MACs, as of experts, are counted in the
            heading alone.
    """
    depth = [(row.name, row.kind, row.divergence / (100 * row.macs)) for row in units if row.macs > 0]
    width = [(row.name, row.kind, row.held[1] / row.macs) for row in groups if row.macs > 0]
    panels = [
        SensitivityPanel(points, heading, left_out=len(rows) - len(points))
        for points, heading, rows in (
            (depth, "Divergence per 1% of the MACs, each unit alone", units),
            (width, "Saliency per MACs, half of each group, both in %", groups),
        )
        if points
    ]
    if not panels:
        figure = empty_figure(5.6, 0.6)
        add_heading(figure, f"None of {len(units) + len(groups)} units and groups saves MACs")
        return figure
    return draw_panels(panels)


class SensitivityPanel:
    """Points over depth on a logarithmic axis; values off the axis lie at its ends, as triangles.

    Args:
        points: Points in order of depth.
        heading: Title of the panel.
        left_out: Number of further units without saved MACs.
    """

    def __init__(self, points: Sequence[Point], heading: str, left_out: int = 0) -> None:
        self.points = points
        self.bands = bands(len(points), MOST)
        self.prefix = shared_prefix([name for name, *_ in points])
        self.heading = heading + (f"\n{left_out} more save no MACs and are not drawn" if left_out else "")
        self.limits = _limits(value for *_, value in points)
        self.handles = self._handles()

    @property
    def width(self) -> float:
        """Width for the points of a line."""
        return max(STEP * len(self.bands[0]) + 1.2, 5.6)

    def height(self, width: float) -> float:
        """Height of the lines of points with names, heading and legend."""
        names = LETTER * max(len(name.removeprefix(self.prefix)) for name, *_ in self.points)
        around = heading_height(self.heading, width) + 0.25 * legend_lines(self._labels, width)
        return (2.1 + names) * len(self.bands) + 0.4 + around

    def draw(self, figure: FigureBase) -> None:
        """Draw and name the points."""
        lines = [styled(axes) for axes in figure.subplots(len(self.bands), squeeze=False).flat]
        for axes, band in zip(lines, self.bands, strict=True):
            _scale(axes, self.limits)
            axes.set_xlim(-0.7, len(self.bands[0]) - 0.3)
            self._scatter(axes, self.points[band.start : band.stop])
        lines[-1].set_xlabel(self.prefix.removesuffix("."), fontsize=9)
        add_heading(figure, self.heading)
        add_legend(figure, self.handles, self._labels, "lower left")

    def _scatter(self, axes: Axes, points: Sequence[Point]) -> None:
        for kind in dict.fromkeys(kind for _, kind, _ in points):
            own = [(place, value) for place, (_, other, value) in enumerate(points) if other == kind]
            for marker, at in {"o-": _is_drawn, "v": _is_below, "^": math.isinf}.items():
                shown = [(x, min(max(y, self.limits[0]), self.limits[1])) for x, y in own if at(y)]
                if shown:
                    axes.plot(*zip(*shown, strict=True), marker, ms=4, lw=0.8, color=_color(kind), clip_on=False)
        names = [name.removeprefix(self.prefix) for name, *_ in points]
        axes.set_xticks(range(len(points)), names, rotation=90, fontsize=7)

    def _handles(self) -> list[Line2D]:
        kinds = dict.fromkeys(kind for _, kind, _ in self.points)
        handles = [Line2D([], [], marker="o", ms=4, lw=0.8, color=_color(kind), label=kind) for kind in kinds]
        below, cannot = (sum(at(value) for *_, value in self.points) for at in (_is_below, math.isinf))
        for marker, count, label in (("v", below, "at 0 or below"), ("^", cannot, "cannot go")):
            if count:
                handles.append(Line2D([], [], marker=marker, ms=4, lw=0, color=BLACK, label=f"{label}: {count}"))
        return handles

    @property
    def _labels(self) -> list[str]:
        return [str(handle.get_label()) for handle in self.handles]


def _is_drawn(value: float) -> bool:
    return 0 < value < math.inf


def _is_below(value: float) -> bool:
    return value <= 0


def _color(kind: str) -> str:
    return DEPTH_COLORS.get(kind, TRAITS[kind].color)


def _limits(values: Iterable[float]) -> tuple[float, float]:
    """Return the ends of the axis, with a margin around all positive finite values."""
    shown = [value for value in values if _is_drawn(value)] or [1.0]
    return min(shown) / 1.6, max(shown) * 1.6


def _scale(axes: Axes, limits: tuple[float, float]) -> None:
    """Make the axis logarithmic, with a number at every tick."""
    axes.set_yscale("log")
    axes.set_ylim(*limits)
    subs = (1.0, 2.0, 5.0) if limits[1] / limits[0] < 300 else (1.0,)
    axes.yaxis.set_major_locator(LogLocator(subs=subs))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
