"""Pictures of a plan in width: what every group keeps, and the two rankings that a plan by tolerance weighs.

Groups are drawn in order of depth. A bar is the share of a group's units that stays; the light bar behind it is what
was there.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure, FigureBase
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MultipleLocator

from prunerecover.display.style import (
    BLACK,
    LIGHT,
    add_heading,
    add_legend,
    empty_figure,
    heading_height,
    legend_lines,
    new_axes,
)
from prunerecover.plan.kept_groups import KeptGroup
from prunerecover.plan.kinds import TRAITS, WIDTH_KINDS, plural

MANY = 64  # groups; beyond, only some are named
COUNTED = 40  # groups; beyond, bars are too narrow for numbers
WIDEST = 16.0  # inches
LETTER = 0.068  # inches per letter of a group's name


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
        """Room for all groups."""
        return max(self.step * len(self.groups) + 1.0, 4.6)

    def height(self, width: float) -> float:
        """Bars, names, heading and legend."""
        names = LETTER * max(map(len, self.names)) + (0.2 if self.prefix else 0.0)
        return 2.1 + heading_height(self.title, width) + names + 0.2 * legend_lines(self._labels, width)

    def draw(self, figure: FigureBase) -> None:
        """Draw the bars and name the groups."""
        axes = new_axes(figure)
        at = range(len(self.groups))
        axes.bar(at, 1.0, width=0.74, color=LIGHT)
        axes.bar(at, [g.share for g in self.groups], width=0.74, color=[TRAITS[g.kind].color for g in self.groups])
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
        add_heading(figure, self.title)
        add_legend(figure, self.handles, self._labels, "lower left")

    @property
    def _labels(self) -> list[str]:
        return [str(handle.get_label()) for handle in self.handles]


def plot_kept(groups: Sequence[KeptGroup], title: str | None = None) -> Figure:
    """Draw what every group keeps.

    Args:
        groups: As `Plan.kept_groups` lists them, in order of depth.
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
        color=TRAITS[group.kind].ink if inside else BLACK,
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
    kinds = [kind for kind in WIDTH_KINDS if any(group.kind == kind for group in groups)]
    return [
        *(Patch(facecolor=TRAITS[kind].color, label=f"{plural(kind)} kept") for kind in kinds),
        Patch(color=LIGHT, label="gone"),
    ]
