"""Figures of a run: the metric over epochs with the surgery marked, and accuracy against cost for several methods.

Functions return a `matplotlib.figure.Figure` made without pyplot, so global state stays and no window opens; write the
figure with `figure.savefig(path)`. Series differ in colour and in marker. `plot_plan` and `plot_kept` live in
`plan.figure`, `plot_rankings` in `width.figure`.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from prunerecover.display.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    LIGHT,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    add_legend,
    new_figure,
)
from prunerecover.plan.figure import plot_kept, plot_plan
from prunerecover.width.figure import plot_rankings

__all__ = ["TradeoffPoint", "plot_history", "plot_kept", "plot_plan", "plot_rankings", "plot_tradeoff"]

SERIES = tuple(zip((BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY), "osD^vP", strict=True))

LABEL, NOTE = 36, 38  # letters along the height of the axes; longer texts take several lines


@dataclass(frozen=True)
class TradeoffPoint:
    """A pruned model in `plot_tradeoff`.

    Args:
        method: Series of the point.
        cost: Cost as a share of the dense cost, such as `LatencyRatio.ratio.value`.
        value: Metric, a share.
        low: Lower end of the interval.
        high: Upper end of the interval.
    """

    method: str
    cost: float
    value: float
    low: float
    high: float


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
    figure, axes = new_figure(6.8, 3.8)
    for i, (epoch, label) in enumerate(surgeries):
        axes.axvline(epoch, color=GREY, linewidth=1.2, linestyle=":", label="_" if i else "surgery", zorder=1)
        _note(axes, epoch, label)
    if dense is not None:
        axes.axhline(dense, color=BLACK, linewidth=1, linestyle=(0, (6, 3)), label="dense", zorder=2)
    for (name, points), (color, marker) in zip(history.items(), cycle(SERIES)):
        epochs, values = zip(*points, strict=True) if points else ((), ())
        axes.plot(epochs, values, color=color, marker=marker, markersize=4.5, linewidth=1.8, label=name, zorder=3)
    axes.set_xlabel("Epoch")
    axes.set_ylabel(textwrap.fill(metric, LABEL))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _finish(figure, axes, percent)
    return figure


def plot_tradeoff(
    points: Iterable[TradeoffPoint],
    dense: float | None = None,
    cost: str = "Latency, share of dense",
    metric: str = "Top-1 accuracy",
) -> Figure:
    """Plot accuracy against cost, a line per method, with the interval of each point.

    Args:
        points: Pruned models.
        dense: Accuracy of the dense model, drawn as a star at cost 1.
        cost: Label of the x axis.
        metric: Label of the y axis.
    """
    figure, axes = new_figure(6.4, 4.2)
    methods: dict[str, list[TradeoffPoint]] = {}
    for point in points:
        methods.setdefault(point.method, []).append(point)
    for (name, found), (color, marker) in zip(methods.items(), cycle(SERIES)):
        line = sorted(found, key=lambda p: p.cost)
        values = [p.value for p in line]
        errors = [[p.value - p.low for p in line], [p.high - p.value for p in line]]
        axes.errorbar(
            [p.cost for p in line],
            values,
            yerr=errors,
            color=color,
            marker=marker,
            markersize=5.5,
            linewidth=1.6,
            elinewidth=1.1,
            capsize=2.5,
            label=name,
            zorder=3,
        )
    if dense is not None:
        axes.plot([1], [dense], color=BLACK, marker="*", markersize=13, linestyle="none", label="dense", zorder=4)
    axes.set_xlabel(cost)
    axes.set_ylabel(metric)
    axes.xaxis.set_major_formatter(FuncFormatter(_percent))
    _finish(figure, axes, percent=True)
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
    axes.grid(axis="y", color=LIGHT, linewidth=0.8)
    if percent:
        axes.yaxis.set_major_formatter(FuncFormatter(_percent))
    handles, labels = axes.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda i: labels[i] not in ("dense", "surgery"))
    add_legend(figure, [handles[i] for i in order], [labels[i] for i in order], "upper left")


def _percent(share: float, _: object = None) -> str:
    return f"{100 * share:g}%"
