"""The common look of all figures: colours, axes, legend.

Colours are from Okabe and Ito (2008), distinct for colour-blind readers.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure, FigureBase
from matplotlib.layout_engine import ConstrainedLayoutEngine

from prunerecover.files.atomic import atomic_file

BLACK, GREY, LIGHT = "#1a1a1a", "#767676", "#e6e6e6"
BLUE, ORANGE, GREEN, VERMILION = "#0072b2", "#e69f00", "#009e73", "#d55e00"
PURPLE, SKY = "#cc79a7", "#56b4e9"
MOST = 40  # columns of a panel side by side; more go below


class ShownFigure(Figure):
    """Figure that notebooks show as a picture, also without `%matplotlib inline`."""

    def _repr_png_(self) -> bytes:
        """Return the picture for notebooks."""
        picture = io.BytesIO()
        self.savefig(picture, format="png", bbox_inches="tight")
        return picture.getvalue()


def new_figure(width: float, height: float) -> tuple[Figure, Axes]:
    """Return an empty figure of `width` by `height` inches, and its axes, in the style of this module."""
    figure = empty_figure(width, height)
    return figure, new_axes(figure)


def empty_figure(width: float, height: float) -> Figure:
    """Return a figure of `width` by `height` inches without axes."""
    around = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08)
    return ShownFigure(figsize=(width, height), layout=around, facecolor="white")


def new_axes(figure: FigureBase) -> Axes:
    """Add the only axes of a figure or subfigure."""
    return styled(figure.add_subplot())


def styled(axes: Axes) -> Axes:
    """Style axes, and return them."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    axes.tick_params(color=GREY, labelsize=9)
    axes.set_axisbelow(True)
    return axes


def add_heading(figure: FigureBase, text: str) -> None:
    """Put a heading above the axes, from the left edge of the figure on, with line breaks where needed.

    Args:
        figure: Figure or subfigure.
        text: Heading; line breaks stay.
    """
    width = inches(figure)
    lines = "\n".join(_wrapped(text, width))
    figure.suptitle(lines, x=0.15 / width, ha="left", fontsize=10)


def heading_height(text: str, width: float) -> float:
    """Return the height of a heading, in inches, in a figure of `width` inches."""
    return 0.18 * len(_wrapped(text, width)) + 0.1


def _wrapped(text: str, width: float) -> list[str]:
    return [line for part in text.split("\n") for line in textwrap.wrap(part, int(width / 0.076)) or [""]]


def add_legend(figure: FigureBase, handles: Sequence[Any], labels: Sequence[str], where: str) -> None:
    """Put a legend outside the axes, in as many columns as fit.

    Args:
        figure: Figure or subfigure; the columns must fit into the whole figure's width.
        handles: Artists of matplotlib, one per label.
        labels: Texts of the artists.
        where: Side of the axes, such as "upper left".
    """
    columns = legend_columns(labels, inches(figure))
    figure.legend(handles, labels, loc=f"outside {where}", ncols=columns, frameon=False, fontsize=8.5)


def inches(figure: FigureBase) -> float:
    """Return the width of the whole figure around a figure or subfigure."""
    return figure.get_figwidth() if isinstance(figure, Figure) else inches(figure.figure)


def legend_columns(labels: Sequence[str], width: float) -> int:
    """Return the number of legend columns that fit into `width` inches."""
    longest = max((len(label) for label in labels), default=0)
    return max(1, int((width - 0.2) / (0.075 * longest + 0.55)))


def legend_lines(labels: Sequence[str], width: float) -> int:
    """Return the number of legend lines in a figure of `width` inches."""
    return -(-len(labels) // legend_columns(labels, width))


def bands(count: int, most: int) -> list[range]:
    """Divide `count` things among lines of nearly the same length.

    >>> bands(5, 4)
    [range(0, 3), range(3, 5)]

    Args:
        count: Number of things.
        most: Largest number on a line.
    """
    length = max(-(-count // max(-(-count // most), 1)), 1)
    return [range(start, min(start + length, count)) for start in range(0, count, length)]


class Panel(Protocol):
    """A picture for a figure of its own, or for a place among stacked panels."""

    @property
    def width(self) -> float:
        """Preferred width, in inches."""

    def height(self, width: float) -> float:
        """Return the height, in inches, at a given width."""

    def draw(self, figure: FigureBase) -> None:
        """Draw into an empty figure or subfigure."""


class Banded:
    """Panel of several lines of axes, with a heading above and a legend below.

    Args:
        count: Number of columns.
        title: Heading.
        handles: Artists of the legend, with labels.
    """

    def __init__(self, count: int, title: str, handles: Sequence[Artist]) -> None:
        self.bands, self.title, self.handles = bands(count, MOST), title, handles
        self.labels = [str(handle.get_label()) for handle in handles]

    def around(self, width: float) -> float:
        """Return the height of heading and legend, in inches, at a given width."""
        return heading_height(self.title, width) + 0.25 * legend_lines(self.labels, width)

    def lines(self, figure: FigureBase, below: str) -> list[Axes]:
        """Add the axes, with heading and legend.

        Args:
            figure: Empty figure or subfigure.
            below: Label below the last line.
        """
        lines = [styled(axes) for axes in figure.subplots(len(self.bands), squeeze=False).flat]
        lines[-1].set_xlabel(below, fontsize=9)
        add_heading(figure, self.title)
        add_legend(figure, self.handles, self.labels, "lower left")
        return lines


def draw_panels(panels: Sequence[Panel]) -> Figure:
    """Return a figure with all panels, from top to bottom."""
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


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure as a picture, completely or not at all.

    Args:
        figure: Figure of matplotlib.
        path: Path of the file; a path without a suffix becomes a PNG.
    """
    path = Path(path)
    with atomic_file(path if path.suffix else path.with_name(f"{path.name}.png")) as unfinished:
        figure.savefig(unfinished, dpi=150, bbox_inches="tight")
