"""The curves of `width.py`: top-1 over the share of the MACs that goes, without training, one panel per network."""

from __future__ import annotations

from collections import defaultdict
from statistics import mean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.width.width_peers import OURS
from prunerecover.display.style import BLUE, GREEN, GREY, ORANGE, PURPLE, VERMILION, add_legend, empty_figure, styled

STAGE = "bn_recalibrated"
BEST = "torch-pruning, the best of six"
# What the README calls a method, and how its line is drawn.
LINES = {
    OURS: (OURS, BLUE, "o"),
    "prunerecover, uniform": ("prunerecover, uniform", GREEN, "D"),
    BEST: (BEST, ORANGE, "s"),
    "network-pruner": ("FAIR-Pruner's package", VERMILION, "^"),
    "prunerecover, ToD by the book": ("Tolerance of Difference", PURPLE, "v"),
}
Row = dict[str, Any]


def plot_curves(rows: list[Row], models: tuple[str, ...]) -> Figure:
    """Draw top-1 in percent, the mean over seeds, at matched MACs; the best of torch-pruning's ways at each point.

    Args:
        rows: Of the results.
        models: One panel each.
    """
    figure = empty_figure(9.0, 3.4)
    panels = figure.subplots(1, len(models), sharey=True, squeeze=False)[0]
    for axes, model in zip(panels, models, strict=True):
        _draw(styled(axes), [row for row in rows if row["model"] == model])
        axes.set_title(model, fontsize=10)
        axes.set_xlabel("MACs removed, %", fontsize=9)
    panels[0].set_ylabel("top-1, %")
    add_legend(figure, *panels[0].get_legend_handles_labels(), "lower center")
    return figure


def _draw(axes: Axes, rows: list[Row]) -> None:
    dense = next(row["top1"] for row in rows if row["method"] == "dense")
    axes.axhline(dense, color=GREY, linewidth=1, linestyle=":")
    axes.text(
        0.98, dense, "dense", transform=axes.get_yaxis_transform(), va="bottom", ha="right", color=GREY, fontsize=9
    )
    found = _means([row for row in rows if (row.get("match"), row["stage"]) == ("macs", STAGE)])
    for name, (label, color, marker) in LINES.items():
        points = sorted(found[name].items())
        x, y = [100 * share for share, _ in points], [value for _, value in points]
        axes.plot(x, y, color=color, marker=marker, markersize=5, linewidth=2.2 if name == OURS else 1.2, label=label)
    axes.set_xticks([20, 30, 50])


def _means(rows: list[Row]) -> dict[str, dict[float, float]]:
    """Return the mean over seeds by method and budget, with the best of torch-pruning's as a method of its own."""
    values: dict[tuple[str, float], list[float]] = defaultdict(list)
    for row in rows:
        values[row["method"], row["budget"]].append(row["top1"])
    found: dict[str, dict[float, float]] = defaultdict(dict)
    for (method, share), own in values.items():
        name = BEST if method.startswith("torch-pruning") else method
        found[name][share] = max(found[name].get(share, 0.0), mean(own))
    return found
