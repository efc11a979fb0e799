"""Picture of a network's layers in order of execution, and of what became of each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch as Swatch
from matplotlib.patches import Rectangle

from prunerecover.display.style import (
    BLACK,
    BLUE,
    GREY,
    LIGHT,
    ORANGE,
    PURPLE,
    VERMILION,
    add_heading,
    add_legend,
    empty_figure,
    new_axes,
)

Status = Literal["kept", "narrowed", "identity", "gone", "attention"]
COLOURS: Mapping[str, str] = {
    "kept": BLUE,
    "attention": PURPLE,
    "narrowed": BLUE,
    "identity": ORANGE,
    "gone": VERMILION,
}
LABELS = {
    "kept": "layer",
    "attention": "layer of an attention",
    "narrowed": "narrowed: pale is what went",
    "identity": "identity: hands on what it gets",
    "gone": "gone with what holds it",
}
PER_ROW = 64  # layers


@dataclass(frozen=True)
class DrawnLayer:
    """A layer as it is drawn.

    Attributes:
        name: Path.
        width: Output channels or features of the dense layer.
        left: Of these, how many are left.
        status: What became of it.
    """

    name: str
    width: int
    left: int
    status: Status


def plot_layers(layers: Sequence[DrawnLayer], title: str | None = None) -> Figure:
    """Draw one bar per layer, as high as the layer is wide, coloured by what became of it.

    Args:
        layers: In order of execution.
        title: Heading; None: how many layers went.

    Raises:
        ValueError: If there is no layer.
    """
    if not layers:
        raise ValueError("Expected a network with layers to draw, but it has none.")
    rows = [layers[i : i + PER_ROW] for i in range(0, len(layers), PER_ROW)]
    figure = empty_figure(max(4.5, 0.14 * min(len(layers), PER_ROW) + 1), 1.2 * len(rows) + 1.0)
    tallest = max(layer.width for layer in layers)
    axes = new_axes(figure)
    for number, row in enumerate(rows):
        for x, layer in enumerate(row):
            _bar(axes, x, -number * 1.25, layer, tallest)
        axes.text(-1.2, -number * 1.25, str(number * PER_ROW), ha="right", va="bottom", fontsize=7, color=GREY)
    axes.set_xlim(-3, min(len(layers), PER_ROW) + 0.5)
    axes.set_ylim(-1.25 * (len(rows) - 1) - 0.1, 1.1)
    axes.axis("off")
    shown = [status for status in LABELS if any(layer.status == status for layer in layers)]
    handles = [Swatch(facecolor=COLOURS[status], label=LABELS[status]) for status in shown]
    went = sum(layer.status in ("identity", "gone") for layer in layers)
    add_heading(figure, title or (f"{went} of {len(layers)} layers went" if went else f"{len(layers)} layers"))
    add_legend(figure, handles, [LABELS[status] for status in shown], "lower left")
    return figure


def _bar(axes: Axes, x: float, y: float, layer: DrawnLayer, tallest: int) -> None:
    height = max((layer.width / tallest) ** 0.5, 0.04)  # areas of weights go with the square of widths
    went, colour = layer.status in ("identity", "gone"), COLOURS[layer.status]
    face, edge, hatch = ("none", colour, "////" if layer.status == "gone" else "") if went else (LIGHT, "none", "")
    around = Rectangle((x - 0.38, y), 0.76, height, linewidth=0.8, facecolor=face, edgecolor=edge, hatch=hatch)
    axes.add_patch(around)
    if not went:
        axes.add_patch(Rectangle((x - 0.38, y), 0.76, height * layer.left / layer.width, facecolor=colour))
    if layer.status == "identity":
        axes.plot([x - 0.38, x + 0.38], [y, y], color=BLACK, linewidth=1.2)
