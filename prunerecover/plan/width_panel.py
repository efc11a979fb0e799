"""Pictures of a plan in width: what every group keeps, and the two rankings that a plan by tolerance weighs.

Groups are drawn in order of depth. A bar is the share of a group's units that stays; the light bar behind it is what
was there.
"""

from __future__ import annotations

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
    bands,
    empty_figure,
    heading_height,
    inches,
    legend_lines,
    styled,
)
from prunerecover.display.unit_grid import shared_prefix
from prunerecover.plan.kept_groups import KeptGroup
from prunerecover.plan.kinds import TRAITS, WIDTH_KINDS, plural

MOST = 40  # groups side by side; more go below
STEP = 0.3  # inches from one group to the next
LETTER = 0.068  # inches per letter of a group's name


class WidthPanel:
    """Bars: the share that every group keeps, coloured by kind.

    Args:
        groups: In order.
        title: Heading; None: how many units of each kind went.
    """

    def __init__(self, groups: Sequence[KeptGroup], title: str | None = None) -> None:
        self.groups = groups
        self.bands = bands(len(groups), MOST)
        self.title = title or _count(groups)
        self.prefix = shared_prefix([group.name for group in groups])
        self.names = [group.name.removeprefix(self.prefix) for group in groups]
        self.handles = _handles(groups)

    @property
    def width(self) -> float:
        """Room for the groups of a line."""
        return max(STEP * len(self.bands[0]) + 1.0, 4.6)

    def height(self, width: float) -> float:
        """Lines of bars with their names, heading and legend."""
        names = LETTER * max(map(len, self.names))
        around = heading_height(self.title, width) + 0.25 * legend_lines(self._labels, width)
        return (1.9 + names) * len(self.bands) + 0.3 + around

    def draw(self, figure: FigureBase) -> None:
        """Draw the bars and name the groups."""
        lines = [styled(axes) for axes in figure.subplots(len(self.bands), squeeze=False).flat]
        for axes, band in zip(lines, self.bands, strict=True):
            _draw_bars(axes, self.groups[band.start : band.stop])
            axes.set_xticks(range(len(band)), self.names[band.start : band.stop], rotation=90, fontsize=7.5)
            axes.set_xlim(-0.7, int((inches(figure) - 1.0) / STEP) - 0.3)
        lines[-1].set_xlabel(self.prefix.removesuffix("."), fontsize=9)
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


def _draw_bars(axes: Axes, groups: Sequence[KeptGroup]) -> None:
    at = range(len(groups))
    axes.bar(at, 1.0, width=0.74, color=LIGHT)
    axes.bar(at, [g.share for g in groups], width=0.74, color=[TRAITS[g.kind].color for g in groups])
    for x, group in enumerate(groups):
        _count_on(axes, x, group)
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_locator(MultipleLocator(0.25))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g}%"))
    axes.set_ylabel("Units kept", fontsize=9)
    axes.tick_params(axis="x", length=0)
    axes.spines["left"].set_visible(False)


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


def _count(groups: Sequence[KeptGroup]) -> str:
    """Say how many units of each kind go, apart from those that only follow layers."""
    chosen, followed = list[str](), list[str]()
    for kind in dict.fromkeys(group.kind for group in groups):
        alike = [group for group in groups if group.kind == kind]
        size, follow = (sum(getattr(group, name) for group in alike) for name in ("size", "followed"))
        gone = size - sum(group.kept for group in alike) - follow
        chosen += [f"{kind} {gone:,} of {size:,}"] if gone or not follow else []
        followed += [f"{kind} {follow:,} of {size:,}"] if follow else []
    said = [f"Removed: {', '.join(chosen)}"] if chosen else []
    return "\n".join([*said, *([f"Widths that follow the layers: {', '.join(followed)}"] if followed else [])])


def _handles(groups: Sequence[KeptGroup]) -> list[Patch]:
    kinds = [kind for kind in WIDTH_KINDS if any(group.kind == kind for group in groups)]
    return [
        *(Patch(facecolor=TRAITS[kind].color, label=f"{plural(kind)} kept") for kind in kinds),
        Patch(color=LIGHT, label="gone"),
    ]
