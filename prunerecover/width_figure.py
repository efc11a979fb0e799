"""Pictures of a plan in width: what every group keeps, and the two rankings that a plan by tolerance weighs.

Groups are drawn in order of depth. A bar is the share of a group's units that stays; the light bar behind it is what
was there.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, FigureBase
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator, MultipleLocator
from torch import Tensor

from prunerecover.edits import Narrow
from prunerecover.figure_style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    LIGHT,
    ORANGE,
    PURPLE,
    VERMILION,
    add_legend,
    empty_figure,
    legend_lines,
    new_axes,
    styled,
)
from prunerecover.kept_groups import KeptGroup
from prunerecover.width.tolerance import tolerance_of_difference

if TYPE_CHECKING:
    from prunerecover.plan import Plan

COLORS = {"channel": BLUE, "head": ORANGE, "neuron": GREEN, "expert": PURPLE}
INK = {"channel": "white", "head": BLACK, "neuron": "white", "expert": BLACK}  # on these colours
MANY = 64  # groups; beyond, only some are named
COUNTED = 40  # groups; beyond, bars are too narrow for numbers
WIDEST = 16.0  # inches
LETTER = 0.068  # inches per letter of a group's name
SHOWN = 9  # groups in a figure of rankings


class WidthPanel:
    """Bars: the share that every group keeps, coloured by kind.

    Args:
        groups: In order.
        title: Heading; None: how many units of each kind went.
    """

    def __init__(self, groups: Sequence[KeptGroup], title: str | None = None) -> None:
        self.groups = groups
        self.step = min(0.3, (WIDEST - 1.0) / len(groups))
        self.title = title or _count(groups)
        self.prefix = _shared_prefix([group.name for group in groups])
        self.names = [group.name.removeprefix(self.prefix) for group in groups]
        self.handles = _handles(groups)

    @property
    def width(self) -> float:
        """Room for all groups, and for the heading."""
        return max(self.step * len(self.groups) + 1.0, 0.08 * len(self.title) + 0.8, 4.6)

    def height(self, width: float) -> float:
        """Bars, names, heading and legend."""
        names = LETTER * max(map(len, self.names)) + (0.2 if self.prefix else 0.0)
        return 2.35 + names + 0.2 * legend_lines(self._labels, width)

    def draw(self, figure: FigureBase) -> None:
        """Draw the bars and name the groups."""
        axes = new_axes(figure)
        at = range(len(self.groups))
        axes.bar(at, 1.0, width=0.74, color=LIGHT)
        axes.bar(at, [g.share for g in self.groups], width=0.74, color=[COLORS[g.kind] for g in self.groups])
        if len(self.groups) <= COUNTED:
            for x, group in enumerate(self.groups):
                _count_on(axes, x, group)
        every = math.ceil(len(self.groups) / MANY)
        axes.set_xticks(at[::every], self.names[::every], rotation=90, fontsize=7.5)
        axes.set_xlabel(self.prefix.removesuffix("."), fontsize=9)
        axes.set_xlim(-0.7, max(len(self.groups), 12) - 0.3)
        axes.set_ylim(0, 1)
        axes.yaxis.set_major_locator(MultipleLocator(0.25))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g}%"))
        axes.set_ylabel("Units kept", fontsize=9)
        axes.tick_params(axis="x", length=0)
        axes.spines["left"].set_visible(False)
        axes.set_title(self.title, fontsize=10, loc="left")
        add_legend(figure, self.handles, self._labels, "lower left")

    @property
    def _labels(self) -> list[str]:
        return [str(handle.get_label()) for handle in self.handles]


def plot_kept(groups: Sequence[KeptGroup], title: str | None = None) -> Figure:
    """Draw what every group keeps.

    Args:
        groups: As `kept_groups(plan)` lists them, in order of depth.
        title: Heading; by default how many units of each kind went.

    Raises:
        ValueError: If there are none.
    """
    if not groups:
        raise ValueError("Expected at least one group to draw, but got none. Does the plan narrow anything?")
    panel = WidthPanel(groups, title)
    figure = empty_figure(panel.width, panel.height(panel.width))
    panel.draw(figure)
    return figure


def plot_rankings(
    plan: Plan,
    removal: Mapping[str, Tensor],
    protection: Mapping[str, Tensor],
    groups: Sequence[str] | None = None,
    names: tuple[str, str] = ("removal signal", "protection signal"),
) -> Figure:
    """Draw where the units of some groups stand in both rankings, and which of them a plan by tolerance removes.

    A unit further left goes earlier, one further up is better protected. What is removed lies left of the line; those
    of them in the shaded corner are also among the equally many most protected ones: their share is ToD.

    Args:
        plan: For the dense model, narrowing each group once.
        removal: `(size,)` by group name, low goes first; for groups with strata see `removal_positions`.
        protection: `(size,)` by group name, high is protected.
        groups: To draw; None: up to nine that lose units, evenly spaced in depth.
        names: Of the two signals.

    Raises:
        ValueError: If the plan narrows no group, or not those that are named.
    """
    narrowed = {edit.unit: edit for edit in plan.edits if isinstance(edit, Narrow) and edit.unit in removal}
    chosen = _spread(list(narrowed), SHOWN) if groups is None else list(groups)
    if not chosen or not narrowed.keys() >= set(chosen):
        raise ValueError(
            f"Expected groups that the plan narrows and that are scored, such as {', '.join([*narrowed][:3]) or 'none'}"
            f", but got {', '.join(chosen) or 'no group'}."
        )
    columns = min(3, len(chosen))
    lines = math.ceil(len(chosen) / columns)
    figure = empty_figure(max(2.3 * columns + 0.6, 4.6), 2.35 * lines + 0.75)
    grid = figure.subplots(lines, columns, squeeze=False)
    for axes, name in zip(grid.flat, chosen, strict=False):
        _draw_rankings(styled(axes), narrowed[name], removal[name], protection[name])
    for axes in grid.flat[len(chosen) :]:
        axes.remove()
    figure.supxlabel(f"Rank by {names[0]}: lowest first", fontsize=9)
    figure.supylabel(f"Rank by {names[1]}: highest on top", fontsize=9)
    _explain_rankings(figure)
    return figure


def _draw_rankings(axes: Axes, edit: Narrow, removal: Tensor, protection: Tensor) -> None:
    gone = list(edit.gone)
    depth = len(gone)
    across, up = _ranks(removal), _ranks(-protection)
    left = np.setdiff1d(np.arange(edit.of), gone)
    size = float(np.clip(260 / edit.of, 3, 26))
    style: dict[str, Any] = {"s": size, "linewidth": 0, "clip_on": False, "zorder": 3}
    axes.add_patch(Rectangle((-0.5, -0.5), depth, depth, facecolor=LIGHT, edgecolor="none", zorder=1))
    axes.axvline(depth - 0.5, color=GREY, linewidth=1, linestyle=(0, (4, 2)), zorder=2)
    axes.scatter(across[left], up[left], color=BLUE, **style)
    axes.scatter(across[gone], up[gone], color=VERMILION, **style)
    edge = 0.02 * edit.of + 0.5
    axes.set_xlim(-edge, edit.of - 1 + edge)
    axes.set_ylim(edit.of - 1 + edge, -edge)
    axes.set_aspect("equal")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(4, integer=True))
    axes.tick_params(labelsize=7)
    met = float(tolerance_of_difference(removal, protection)[depth - 1])
    axes.set_title(f"{edit.unit}\n{depth} of {edit.of} go, ToD {met:.2f}", fontsize=8, loc="left")


def _ranks(scores: Tensor) -> np.ndarray:
    """Return the place of every unit in ascending order; ties go by number."""
    return np.asarray(scores.argsort(stable=True).argsort().tolist())


def _explain_rankings(figure: Figure) -> None:
    dot: dict[str, Any] = {"linestyle": "none", "marker": "o", "markersize": 5}
    handles = [
        Line2D([], [], color=VERMILION, label="removed", **dot),
        Line2D([], [], color=BLUE, label="kept", **dot),
        Patch(facecolor=LIGHT, label="removed, yet protected"),
    ]
    add_legend(figure, handles, [str(handle.get_label()) for handle in handles], "upper left")


def _spread(names: list[str], most: int) -> list[str]:
    """Return at most so many names, evenly spaced, the first and the last among them."""
    if len(names) <= most:
        return names
    return [names[round(i * (len(names) - 1) / (most - 1))] for i in range(most)]


def _count_on(axes: Axes, x: int, group: KeptGroup) -> None:
    """Write how many units stay into the bar, or above it where it is too low."""
    inside = group.share > 0.3
    axes.text(
        x,
        group.share + (-0.02 if inside else 0.02),
        f"{group.kept} of {group.size}",
        rotation=90,
        ha="center",
        va="top" if inside else "bottom",
        fontsize=6.5,
        color=INK[group.kind] if inside else BLACK,
    )


def _shared_prefix(names: Sequence[str]) -> str:
    """Return what all names begin with, up to and with a dot.

    >>> _shared_prefix(["blocks.0.attn.qkv", "blocks.0.mlp.fc1", "blocks.1.mlp.fc1"])
    'blocks.'
    """
    before, dot, _ = os.path.commonprefix(names).rpartition(".")
    return before + dot


def _count(groups: Sequence[KeptGroup]) -> str:
    kinds = dict.fromkeys(group.kind for group in groups)
    parts = []
    for kind in kinds:
        alike = [group for group in groups if group.kind == kind]
        size = sum(group.size for group in alike)
        parts.append(f"{kind} {size - sum(group.kept for group in alike):,} of {size:,}")
    return "Removed: " + ", ".join(parts)


def _handles(groups: Sequence[KeptGroup]) -> list[Patch]:
    kinds = [kind for kind in COLORS if any(group.kind == kind for group in groups)]
    return [*(Patch(facecolor=COLORS[kind], label=f"{kind}s kept") for kind in kinds), Patch(color=LIGHT, label="gone")]
