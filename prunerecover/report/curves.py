"""Figure of a run: the metric over epochs with the surgery marked.

The `matplotlib.figure.Figure` is made without pyplot, so global state stays and no window opens; write the figure with
`figure.savefig(path)`. Series differ in colour and in marker.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from prunerecover.display import style

SERIES = tuple(
    zip((style.BLUE, style.VERMILION, style.GREEN, style.ORANGE, style.PURPLE, style.SKY), "osD^vP", strict=True)
)

LABEL, NOTE = 36, 38  # letters along the height of the axes; longer texts take several lines


def plot_history(
    history: Mapping[str, Sequence[tuple[float, float]]],
    surgeries: Iterable[tuple[float, str]] = (),
    dense: float | None = None,
    metric: str = "Top-1 accuracy",
    percent: bool = True,
) -> Figure:
    """Plot a metric over epochs, with a line at each surgery.

    Args:
        history: Points (epoch, value) per series, for instance {"pruned and recovered": [(0, 0.91), (1, 0.93)]}.
        surgeries: Points (epoch, description of the removal).
        dense: Value of the dense model, drawn as a dashed line.
        metric: Label of the y axis.
        percent: Whether values are shares, to be shown in percent.
    """
    figure, axes = style.new_figure(6.8, 3.8)
    for i, (epoch, label) in enumerate(surgeries):
        axes.axvline(epoch, color=style.GREY, linewidth=1.2, linestyle=":", label="_" if i else "surgery", zorder=1)
        _note(axes, epoch, label)
    if dense is not None:
        axes.axhline(dense, color=style.BLACK, linewidth=1, linestyle=(0, (6, 3)), label="dense", zorder=2)
    for (name, points), (color, marker) in zip(history.items(), cycle(SERIES)):
        epochs, values = zip(*points, strict=True) if points else ((), ())
        axes.plot(epochs, values, color=color, marker=marker, markersize=4.5, linewidth=1.8, label=name, zorder=3)
    axes.set_xlabel("Epoch")
    axes.set_ylabel(textwrap.fill(metric, LABEL))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _finish(figure, axes, percent)
    return figure


def _note(axes: Axes, x: float, text: str) -> None:
    """Write along the line at `x`, from the bottom up, where curves of accuracy leave room."""
    axes.text(
        x,
        0.03,
        _lines(text),
        transform=axes.get_xaxis_transform(),
        rotation=90,
        ha="center",
        va="bottom",
        fontsize=8,
        color="#4d4d4d",
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5},
        zorder=2,
    )


def _lines(text: str) -> str:
    """Break a note into lines, but not behind a number."""
    return textwrap.fill(re.sub(r"(\d) ", "\\1\u00a0", text), NOTE)


def _finish(figure: Figure, axes: Axes, percent: bool) -> None:
    axes.grid(axis="y", color=style.LIGHT, linewidth=0.8)
    if percent:
        axes.yaxis.set_major_formatter(FuncFormatter(_percent))
    handles, labels = axes.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda i: labels[i] not in ("dense", "surgery"))
    style.add_legend(figure, [handles[i] for i in order], [labels[i] for i in order], "upper left")


def _percent(share: float, _: object = None) -> str:
    return f"{100 * share:g}%"
