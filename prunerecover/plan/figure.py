"""Picture of a pruned model: which units went, what stands in their place, and what groups keep."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from matplotlib.figure import Figure

from prunerecover.display.style import draw_panels
from prunerecover.display.unit_grid import parts_of
from prunerecover.plan.depth_panel import DepthPanel
from prunerecover.plan.edits import Edit
from prunerecover.plan.evidence import DepthEvidence
from prunerecover.plan.kept_groups import kept_groups
from prunerecover.plan.kinds import WIDTH_KINDS
from prunerecover.plan.removed_units import removed_units
from prunerecover.plan.width_panel import WidthPanel


class NamedUnit(Protocol):
    """What is needed of a unit."""

    @property
    def name(self) -> str:
        """Its canonical name."""

    @property
    def kind(self) -> str:
        """Its kind."""


def plot_plan(
    edits: Sequence[Edit],
    evidence: Mapping[str, Any],
    units: Iterable[NamedUnit] | None = None,
    importance: Mapping[str, float] | None = None,
    title: str | None = None,
) -> Figure:
    """Draw what a plan removed: units of depth as cells, what groups of channels, heads and so on keep as bars.

    Args:
        edits: Of a plan for the dense model.
        evidence: Of the plan.
        units: All units of the dense model, as `find_units` lists them; by default those that the planner chose from,
            which the plan's evidence lists. A plan without shows those that it names.
        importance: By name, shown as a bar in the cell, relative to the largest of its kind; by default
            the plan's.
        title: Heading; by default how many units of each kind went.

    Raises:
        ValueError: If a removed unit is not among `units`, or there is no unit to draw.
    """
    gone = [unit for unit in removed_units(edits) if unit.kind not in WIDTH_KINDS]
    groups = kept_groups(edits, evidence)
    width = [WidthPanel(groups)] if groups else []
    if width and not gone and units is None:
        return draw_panels([WidthPanel(groups, title)])
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
    depth = DepthPanel(kinds, {unit.name: unit.leaves for unit in gone}, bars, title, whole=bool(listed))
    return draw_panels([depth, *width])


def _named(gone: Mapping[str, str], ranked: Iterable[str]) -> dict[str, str]:
    """Return the kinds of units that a plan without a list names: those that go, and what was ranked in their places.

    Args:
        gone: Kinds of the units that go, by name.
        ranked: Names, in order of depth.
    """
    kinds = {parts_of(name)[1]: kind for name, kind in gone.items()}
    alike = {name: kinds[place] for name in ranked if (place := parts_of(name)[1]) in kinds}
    return alike | dict(gone)
