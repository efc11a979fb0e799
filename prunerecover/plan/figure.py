"""Pictures of a plan: removed units with replacements, and kept units of groups.

Units of depth are cells, from `depth_panel`. Groups are bars, in order of depth: the share of kept units, in front of a
light bar for all units.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure, FigureBase
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MultipleLocator

from prunerecover.display.style import BLACK, LIGHT, Banded, draw_panels, inches
from prunerecover.display.unit_grid import parts_of, shared_prefix
from prunerecover.plan.depth_panel import DepthPanel
from prunerecover.plan.edits import Edit
from prunerecover.plan.evidence import DepthEvidence
from prunerecover.plan.kept_groups import KeptGroup, kept_groups
from prunerecover.plan.kinds import TRAITS, WIDTH_KINDS, plural
from prunerecover.plan.removed_units import removed_units
from prunerecover.plan.units import Site

STEP = 0.3  # inches from one group to the next
LETTER = 0.068  # inches per letter of a group's name


def plot_plan(
    edits: Sequence[Edit],
    evidence: Mapping[str, Any],
    units: Iterable[Site] | None = None,
    importance: Mapping[str, float] | None = None,
) -> Figure:
    """Draw the removals of a plan: units of depth as cells, kept channels, heads and so on of groups as bars.

    Args:
        edits: Edits of a plan for the dense model.
        evidence: Evidence of the plan.
        units: All units of the dense model, from `find_units`; by default the units in the evidence of the plan.
            Without such a list, the removed units, and ranked units in the same places.
        importance: Importance by name, shown as a bar in the cell, relative to the largest of the kind; by default from
            the evidence.

    Raises:
        ValueError: If a removed unit is not among `units`, or there is no unit to draw.
    """
    gone = [unit for unit in removed_units(edits) if unit.kind not in WIDTH_KINDS]
    groups = kept_groups(edits, evidence)
    width = [WidthPanel(groups)] if groups else []
    if width and not gone and units is None:
        return draw_panels(width)
    found = DepthEvidence.of(evidence)
    listed = dict(found.units) if units is None else {unit.name: unit.kind for unit in units}
    kinds = listed or _named({unit.name: unit.kind for unit in gone}, found.importance)
    unknown = [unit.name for unit in gone if unit.name not in kinds]
    if unknown or not kinds:
        raise ValueError(
            f"Expected the removed units to be among the {len(kinds)} units of the dense model, but got "
            f"{unknown[:1] or 'no unit at all'}. Pass `units=find_units(model)` as found before the surgery."
        )
    bars = found.importance if importance is None else importance
    depth = DepthPanel(kinds, {unit.name: unit.leaves for unit in gone}, bars, whole=bool(listed))
    return draw_panels([depth, *width])


def _named(gone: Mapping[str, str], ranked: Iterable[str]) -> dict[str, str]:
    """Return the kinds of the units in a plan without a list: removed units, and ranked units in the same places.

    Args:
        gone: Kinds of the removed units, by name.
        ranked: Names of ranked units, in order of depth.
    """
    kinds = {parts_of(name)[1]: kind for name, kind in gone.items()}
    alike = {name: kinds[place] for name in ranked if (place := parts_of(name)[1]) in kinds}
    return alike | dict(gone)


class WidthPanel(Banded):
    """Bars: the kept share of every group, coloured by kind.

    Args:
        groups: Groups, in order.
    """

    def __init__(self, groups: Sequence[KeptGroup]) -> None:
        super().__init__(len(groups), _count(groups), _handles(groups))
        self.groups = groups
        self.prefix = shared_prefix([group.name for group in groups])
        self.names = [group.name.removeprefix(self.prefix) for group in groups]

    @property
    def width(self) -> float:
        """Room for the groups of a line."""
        return max(STEP * len(self.bands[0]) + 1.0, 4.6)

    def height(self, width: float) -> float:
        """Lines of bars with names, heading and legend."""
        names = LETTER * max(map(len, self.names))
        return (1.9 + names) * len(self.bands) + 0.3 + self.around(width)

    def draw(self, figure: FigureBase) -> None:
        """Draw the bars and name the groups."""
        for axes, band in zip(self.lines(figure, self.prefix.removesuffix(".")), self.bands, strict=True):
            _draw_bars(axes, self.groups[band.start : band.stop])
            axes.set_xticks(range(len(band)), self.names[band.start : band.stop], rotation=90, fontsize=7.5)
            axes.set_xlim(-0.7, int((inches(figure) - 1.0) / STEP) - 0.3)


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
    """Write the number of kept units into the bar, or above a low bar."""
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
    """Return a line with the number of removed units of each kind, apart from units that only follow layers."""
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
