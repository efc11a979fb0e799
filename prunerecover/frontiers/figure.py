"""Picture of a frontier: divergence of the output, and the removed share of every cost, over the requested share."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from prunerecover.cost.units.cost_names import titled
from prunerecover.display.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    LIGHT,
    ORANGE,
    add_heading,
    add_legend,
    empty_figure,
    styled,
)
from prunerecover.plan.evidence import FrontierPoint

LOOKS = {"macs": (BLUE, "o"), "params": (GREEN, "s"), "latency": (ORANGE, "^")}
FACTOR = 30  # between the largest and the least divergence, for a logarithmic axis


def plot_frontier(points: Sequence[FrontierPoint], cost: str | Sequence[str]) -> Figure:
    """Draw a frontier: divergence on the left, costs on the right.

    Args:
        points: Points in rising order of their shares.
        cost: Cost of the shares, or several costs.
    """
    figure = empty_figure(8.4, 3.6)
    left, right = (styled(axes) for axes in figure.subplots(1, 2))
    shares = [point.share for point in points]
    divergences = [point.divergence for point in points]
    left.plot(shares, divergences, color=BLACK, marker="o", markersize=5, linewidth=1.8)
    left.set_ylabel("Divergence of the output", fontsize=9)
    if min(divergences) > 0 and max(divergences) > FACTOR * min(divergences):
        left.set_yscale("log")
    _draw_costs(right, points, shares)
    for axes in (left, right):
        axes.set_xlabel(f"Share of the {titled(cost)} that is asked for", fontsize=9)
        axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.grid(axis="y", color=LIGHT, linewidth=0.8)
    add_heading(figure, "What other budgets would cost")
    add_legend(figure, *right.get_legend_handles_labels(), "lower right")
    return figure


def _draw_costs(axes: Axes, points: Sequence[FrontierPoint], shares: Sequence[float]) -> None:
    axes.plot(shares, shares, color=GREY, linewidth=1, linestyle=(0, (6, 3)), label="asked", zorder=1)
    for cost, (color, marker) in LOOKS.items():
        known = [(point.share, point.costs[cost]) for point in points if cost in point.costs]
        if known:
            axes.plot(*zip(*known, strict=True), color=color, marker=marker, linewidth=1.6, label=titled(cost))
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.set_ylabel("Share that goes", fontsize=9)
