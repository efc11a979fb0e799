"""Picture of a network's layers in order of execution, with the effect of pruning on each layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

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
    heading_height,
    legend_lines,
    new_axes,
)

Status = Literal["kept", "narrowed", "identity", "gone", "attention"]
LOOKS: Mapping[Status, tuple[str, str]] = {  # colour and label
    "kept": (BLUE, "layer"),
    "attention": (PURPLE, "layer of an attention"),
    "narrowed": (BLUE, "narrowed: the pale part is removed"),
    "identity": (ORANGE, "identity: passes its input on"),
    "gone": (VERMILION, "removed with the module around it"),
}
WENT = ("identity", "gone")
PER_ROW, FEWEST = 64, 24  # layers in a row, and layers with room at least
LETTERS = 32  # longest shown part of a name, from the end
LETTER, GAP = 0.052, 0.15  # inches: a letter of a name, and the gap between rows


@dataclass(frozen=True)
class DrawnLayer:
    """A layer in the picture.

    Attributes:
        name: Path.
        width: Output channels or features of the dense layer.
        left: Remaining output channels or features.
        status: Effect of pruning on the layer.
    """

    name: str
    width: int
    left: int
    status: Status


def plot_layers(layers: Sequence[DrawnLayer], title: str | None = None) -> Figure:
    """Draw a bar per layer with the name below; the height shows the width, the colour the effect of pruning.

    Args:
        layers: Layers in order of execution.
        title: Heading; None: the number of removed layers.

    Raises:
        ValueError: If there is no layer.
    """
    if not layers:
        raise ValueError("Expected a network with layers to draw, but it has none.")
    rows = [layers[i : i + PER_ROW] for i in range(0, len(layers), PER_ROW)]
    step = 1 + LETTER * (1 + max(len(_shown(layer.name)) for layer in layers)) + GAP
    statuses = [status for status in LOOKS if any(layer.status == status for layer in layers)]
    labels, heading = [LOOKS[status][1] for status in statuses], title or _heading(layers)
    width = 0.15 * max(len(rows[0]), FEWEST) + 2.0
    around = heading_height(heading, width) + 0.25 * legend_lines(labels, width) + 0.1
    figure = empty_figure(width, step * len(rows) + around)
    axes = new_axes(figure)
    tallest = max(layer.width for layer in layers)
    for number, row in enumerate(rows):
        for x, layer in enumerate(row):
            _draw(axes, x, -number * step, layer, tallest)
    axes.set_xlim(-1, max(len(rows[0]), FEWEST))
    axes.set_ylim(GAP - step * len(rows), 1.05)  # in inches, as for the names
    axes.set_axis_off()
    add_heading(figure, heading)
    add_legend(figure, [Swatch(**_look(status)) for status in statuses], labels, "lower left")
    return figure


def _heading(layers: Sequence[DrawnLayer]) -> str:
    went, narrowed = (sum(layer.status in some for layer in layers) for some in (WENT, ("narrowed",)))
    counts = [f"{went} of {len(layers)} layers went" if went else f"{len(layers)} layers"]
    counts += [f"{narrowed} narrowed"] if narrowed else []
    return f"{', '.join(counts)}\nIn order of execution; the height is the square root of the output width"


def _look(status: Status) -> dict[str, Any]:
    """Return the style of a bar's outline."""
    if status in WENT:
        hatch = "////" if status == "gone" else ""
        return {"facecolor": "none", "edgecolor": LOOKS[status][0], "hatch": hatch, "linewidth": 0.8}
    return {"facecolor": LIGHT if status == "narrowed" else LOOKS[status][0], "edgecolor": "none"}


def _draw(axes: Axes, x: float, y: float, layer: DrawnLayer, tallest: int) -> None:
    height = max((layer.width / tallest) ** 0.5, 0.04)  # areas of weights go with the square of widths
    axes.add_patch(Rectangle((x - 0.38, y), 0.76, height, **_look(layer.status)))
    if layer.status == "narrowed":
        axes.add_patch(Rectangle((x - 0.38, y), 0.76, height * layer.left / layer.width, facecolor=BLUE))
    if layer.status == "identity":
        axes.plot([x - 0.38, x + 0.38], [y, y], color=BLACK, linewidth=1.2)
    colour = LOOKS[layer.status][0] if layer.status in WENT else GREY
    axes.text(x, y - LETTER, _shown(layer.name), rotation=90, ha="center", va="top", fontsize=6, color=colour)


def _shown(name: str) -> str:
    return name if len(name) <= LETTERS else f"…{name[1 - LETTERS :]}"
