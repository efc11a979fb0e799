"""The look that all figures share: colours, axes, legend.

Colours are those of Okabe and Ito (2008), which colour-blind readers can tell apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

BLACK, GREY, LIGHT = "#1a1a1a", "#767676", "#e6e6e6"
BLUE, ORANGE, GREEN, VERMILION = "#0072b2", "#e69f00", "#009e73", "#d55e00"
PURPLE, SKY = "#cc79a7", "#56b4e9"


def new_figure(width: float, height: float) -> tuple[Figure, Axes]:
    """Return an empty figure of so many inches, and its axes, in the style of this module."""
    figure = Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08), facecolor="white")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    axes.tick_params(color=GREY, labelsize=9)
    axes.set_axisbelow(True)
    return figure, axes


def add_legend(figure: Figure, handles: Sequence[Any], labels: Sequence[str], where: str) -> int:
    """Put a legend outside the axes, in as many columns as fit, and return the number of its lines."""
    longest = max((len(label) for label in labels), default=0)
    columns = max(1, int((figure.get_figwidth() - 0.2) / (0.075 * longest + 0.55)))
    figure.legend(handles, labels, loc=f"outside {where}", ncols=columns, frameon=False, fontsize=8.5)
    return -(-len(labels) // columns)
