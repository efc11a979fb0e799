"""The look that all figures share: colours, axes, legend.

Colours are those of Okabe and Ito (2008), which colour-blind readers can tell apart.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from matplotlib.axes import Axes
from matplotlib.figure import Figure, FigureBase
from matplotlib.layout_engine import ConstrainedLayoutEngine

from prunerecover.files.atomic import atomic_file

BLACK, GREY, LIGHT = "#1a1a1a", "#767676", "#e6e6e6"
BLUE, ORANGE, GREEN, VERMILION = "#0072b2", "#e69f00", "#009e73", "#d55e00"
PURPLE, SKY = "#cc79a7", "#56b4e9"


def new_figure(width: float, height: float) -> tuple[Figure, Axes]:
    """Return an empty figure of so many inches, and its axes, in the style of this module."""
    figure = empty_figure(width, height)
    return figure, new_axes(figure)


def empty_figure(width: float, height: float) -> Figure:
    """Return a figure of so many inches without axes."""
    return Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08), facecolor="white")


def new_axes(figure: FigureBase) -> Axes:
    """Add the only axes of a figure, or of a part of one."""
    return styled(figure.add_subplot())


def styled(axes: Axes) -> Axes:
    """Give axes the look of all others, and return them."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    axes.tick_params(color=GREY, labelsize=9)
    axes.set_axisbelow(True)
    return axes


def add_heading(figure: FigureBase, text: str) -> None:
    """Put a heading above the axes, from the left edge of the figure on, in as many lines as it takes.

    Args:
        figure: Or a part of one.
        text: Line breaks stay.
    """
    width = inches(figure)
    lines = "\n".join(_wrapped(text, width))
    figure.suptitle(lines, x=0.15 / width, ha="left", fontsize=10)


def heading_height(text: str, width: float) -> float:
    """Return how many inches a heading takes in a figure that is so many inches wide."""
    return 0.18 * len(_wrapped(text, width)) + 0.1


def _wrapped(text: str, width: float) -> list[str]:
    return [line for part in text.split("\n") for line in textwrap.wrap(part, int(width / 0.076)) or [""]]


def add_legend(figure: FigureBase, handles: Sequence[Any], labels: Sequence[str], where: str) -> None:
    """Put a legend outside the axes, in as many columns as fit.

    Args:
        figure: Or a part of one; the columns have to fit into the whole figure's width.
        handles: Artists of matplotlib, one per label.
        labels: Their texts.
        where: Side of the axes, such as "upper left".
    """
    columns = legend_columns(labels, inches(figure))
    figure.legend(handles, labels, loc=f"outside {where}", ncols=columns, frameon=False, fontsize=8.5)


def inches(figure: FigureBase) -> float:
    """Return the width of the whole figure that this one is, or is a part of."""
    return figure.get_figwidth() if isinstance(figure, Figure) else inches(figure.figure)


def legend_columns(labels: Sequence[str], width: float) -> int:
    """Return how many columns of a legend fit into so many inches."""
    longest = max((len(label) for label in labels), default=0)
    return max(1, int((width - 0.2) / (0.075 * longest + 0.55)))


def legend_lines(labels: Sequence[str], width: float) -> int:
    """Return how many lines a legend takes in a figure that is so many inches wide."""
    return -(-len(labels) // legend_columns(labels, width))


def bands(count: int, most: int) -> list[range]:
    """Divide things that stand side by side among lines of nearly one length.

    >>> bands(5, 4)
    [range(0, 3), range(3, 5)]

    Args:
        count: Number of things.
        most: Largest number on a line.
    """
    length = max(-(-count // max(-(-count // most), 1)), 1)
    return [range(start, min(start + length, count)) for start in range(0, count, length)]


class Panel(Protocol):
    """What can be a figure of its own, or one of several on top of each other."""

    @property
    def width(self) -> float:
        """How wide it would like to be, in inches."""

    def height(self, width: float) -> float:
        """Return how high it is, in inches, if it is so wide."""

    def draw(self, figure: FigureBase) -> None:
        """Draw into an empty figure, or a part of one."""


def draw_panels(panels: Sequence[Panel]) -> Figure:
    """Return one figure with all panels, from top to bottom."""
    width = max(panel.width for panel in panels)
    heights = [panel.height(width) for panel in panels]
    figure = empty_figure(width, sum(heights))
    if len(panels) == 1:
        panels[0].draw(figure)
        return figure
    parts = figure.subfigures(len(panels), 1, squeeze=False, height_ratios=heights)
    for part, panel in zip(parts.flat, panels, strict=True):
        panel.draw(part)
    return figure


def save_figure(figure: Figure, path: str | Path, dpi: int = 150) -> None:
    """Write a figure as a picture, whole or not at all.

    Args:
        figure: A matplotlib Figure.
        path: Of the file; one without a suffix becomes a PNG.
        dpi: Dots per inch.
    """
    path = Path(path)
    with atomic_file(path if path.suffix else path.with_name(f"{path.name}.png")) as unfinished:
        figure.savefig(unfinished, dpi=dpi, bbox_inches="tight")
