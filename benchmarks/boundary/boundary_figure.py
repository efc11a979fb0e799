"""The accuracy-latency curve of `boundary_dpt.py`: one line per method, after recovery."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from prunerecover.display.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    add_legend,
    new_figure,
)

OURS = "e prunerecover (default)"
COLORS = (ORANGE, GREEN, GREY, BLACK, VERMILION, PURPLE, SKY)
MARKERS = "osD^vPX*"


def plot_curve(rows: list[dict[str, Any]], stage: str = "recovered") -> Figure:
    """Draw top-1 over the latency that is left; ours in colour, the intervals as bars.

    Args:
        rows: Of the results.
        stage: "prune_only" or "recovered".
    """
    figure, axes = new_figure(7.6, 4.6)
    dense = next(row for row in rows if row["method"] == "dense")
    axes.axhline(dense["top1"], color=GREY, linewidth=1, linestyle=":")
    axes.text(0.0, dense["top1"], "dense", transform=axes.get_yaxis_transform(), va="bottom", color=GREY, fontsize=9)
    methods = sorted({row["method"] for row in rows} - {"dense", OURS})
    for number, method in enumerate([*methods, OURS]):
        chosen = sorted(
            (r for r in rows if r["method"] == method and r["stage"] == stage), key=lambda r: -r["latency_share"]
        )
        if not chosen:
            continue
        top1 = [row["top1"] for row in chosen]
        bars = [[row["top1"] - row["ci_low"] for row in chosen], [row["ci_high"] - row["top1"] for row in chosen]]
        color, width = (BLUE, 2.2) if method == OURS else (COLORS[number % len(COLORS)], 1.0)
        axes.errorbar(
            [row["latency_share"] for row in chosen],
            top1,
            yerr=bars,
            color=color,
            linewidth=width,
            linestyle="-" if number < len(COLORS) or method == OURS else "--",
            marker=MARKERS[number % len(MARKERS)],
            markersize=5,
            label=method.partition(" ")[2],
        )
    axes.set_xlabel("latency, as a share of the dense model's")
    axes.set_ylabel("top-1, %")
    add_legend(figure, *axes.get_legend_handles_labels(), "lower right")
    return figure
