"""Picture of a network's layers in order of execution, and of what became of each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

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
from prunerecover.graph.computation_graph import ComputationGraph
from prunerecover.graph.regions import find_attentions
from prunerecover.plan.edits import Bypass, Edit, Narrow, Patch, Remove

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


def drawn_layers(graph: ComputationGraph, edits: Sequence[Edit] = ()) -> tuple[DrawnLayer, ...]:
    """Return the layers in order of execution, and what edits make of each.

    Args:
        graph: Of the dense network.
        edits: Of a plan for it.
    """
    attention = {index for found in find_attentions(graph) for index in found.layers}
    identity = {edit.unit for edit in edits if isinstance(edit, Bypass) and edit.kind == "layer"}
    replaced = [path for edit in edits if isinstance(edit, Bypass | Patch) for path in edit.modules]
    replaced += [edit.unit for edit in edits if isinstance(edit, Remove)]
    lost: dict[str, int] = {}
    for edit in edits:
        for part in edit.group if isinstance(edit, Narrow) else ():
            path, _, name = part.tensor.rpartition(".")
            if name == "weight" and part.makes:
                lost[path] = lost.get(path, 0) + len(edit.gone) * part.span * len(part.offsets)
    found = []
    for node in graph.of_kind("layer"):
        width = node.shape[1] if node.operation in ("convolution", "_convolution") else node.shape[-1]
        gone = any(node.module == path or node.module.startswith(f"{path}.") for path in replaced)
        status: Status = "attention" if node.index in attention else "kept"
        if node.module in identity:
            status = "identity"
        elif gone:
            status = "gone"
        elif lost.get(node.module):
            status = "narrowed"
        found.append(DrawnLayer(graph.name(node), width, width - min(lost.get(node.module, 0), width), status))
    return tuple(found)


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


def _bar(axes: object, x: float, y: float, layer: DrawnLayer, tallest: int) -> None:
    height = max((layer.width / tallest) ** 0.5, 0.04)  # areas of weights go with the square of widths
    left = height * layer.left / layer.width
    colour = COLOURS[layer.status]
    style = {"facecolor": LIGHT, "edgecolor": "none"}
    if layer.status in ("identity", "gone"):
        style, left = {"facecolor": "none", "edgecolor": colour, "hatch": "////" if layer.status == "gone" else ""}, 0.0
    axes.add_patch(Rectangle((x - 0.38, y), 0.76, height, linewidth=0.8, **style))  # type: ignore[attr-defined]
    if left:
        axes.add_patch(Rectangle((x - 0.38, y), 0.76, left, facecolor=colour, edgecolor="none"))  # type: ignore[attr-defined]
    if layer.status == "identity":
        axes.plot([x - 0.38, x + 0.38], [y, y], color=BLACK, linewidth=1.2)  # type: ignore[attr-defined]
