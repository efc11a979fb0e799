"""Picture of a model pruned in depth: removed units and replacements.

A cell per unit, laid out by `unit_grid`; a unit inside a larger removed unit (the activation of a removed MLP) is drawn
as an outline. The kept channels, heads, neurons and experts of groups have their own panel, in `figure`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import FigureBase
from matplotlib.patches import FancyBboxPatch, Patch, Rectangle

from prunerecover.display.style import BLACK, BLUE, GREEN, GREY, LIGHT, ORANGE, PURPLE, SKY, VERMILION, Banded
from prunerecover.display.unit_grid import arranged
from prunerecover.plan.kinds import DEPTH_KINDS, TRAITS

ROWS = sorted(DEPTH_KINDS, key=lambda kind: len(TRAITS[kind].holds))
LETTER = 0.065  # inches per letter of a label
GONE = "went with what holds it"


@dataclass(frozen=True)
class _Look:
    label: str
    color: str
    sign: str
    ink: str = "white"


LOOKS = {
    "nothing": _Look("nothing", "#4d4d4d", "×"),
    "map": _Look("map in the linear before", "#4d4d4d", "T"),
    "zero": _Look("zero", VERMILION, "0"),
    "identity": _Look("identity", ORANGE, "=", ink=BLACK),
    "slope_bias": _Look("slope and bias", BLUE, "ax+b"),
    "affine": _Look("affine map", GREEN, "Wx+b"),
    "constant": _Look("constant", PURPLE, "c", ink=BLACK),
}


class DepthPanel(Banded):
    """Cells: a column per block, a row per kind or place.

    Args:
        kinds: Kinds of all units, by name.
        left: Replacement of each removed unit, by name.
        bars: Importances by name.
        whole: Whether `kinds` holds all units of the network, so the heading can give totals.
    """

    def __init__(
        self,
        kinds: Mapping[str, str],
        left: Mapping[str, str],
        bars: Mapping[str, float],
        whole: bool = True,
    ) -> None:
        self.kinds, self.left, self.bars = kinds, left, bars
        self.grid = arranged(kinds, _row_of)
        self.tallest = {kind: max(bars.get(n, 0.0) for n in kinds if kinds[n] == kind) for kind in set(kinds.values())}
        handles = _handles([_status(name, left) for name in kinds], max(self.tallest.values()) > 0)
        super().__init__(len(self.grid.columns), _count(kinds, left, whole), handles)
        self.cell = min(0.46, 16 / len(self.bands[0]))

    @property
    def width(self) -> float:
        """Room for the blocks of a line, with labels."""
        return max(self.cell * len(self.bands[0]) + LETTER * max(map(len, self.grid.rows)) + 0.6, 4.6)

    def height(self, width: float) -> float:
        """Lines of cells with labels, heading and legend."""
        names = LETTER * self._longest + 0.1 if self._are_upright else 0.25
        return (self.cell * len(self.grid.rows) + names + 0.15) * len(self.bands) + 0.5 + self.around(width)

    def draw(self, figure: FigureBase) -> None:
        """Draw the cells and the legend."""
        lines = self.lines(figure, self._of_columns)
        for axes, band in zip(lines, self.bands, strict=True):
            self._label(axes, band)
        for name, (x, y) in self.grid.cells.items():
            line, at = divmod(x, len(self.bands[0]))
            highest = self.tallest[self.kinds[name]]
            share = max(self.bars.get(name, 0.0), 0.0) / highest if highest > 0 else 0.0
            _draw_cell(lines[line], (at, y), _status(name, self.left), share)

    def _label(self, axes: Axes, band: range) -> None:
        axes.set_xlim(-0.6, len(self.bands[0]) - 0.4)
        axes.set_ylim(len(self.grid.rows) - 0.4, -0.6)
        axes.set_aspect("equal", anchor="NW")
        names = [self.grid.columns[number] for number in band]
        axes.set_xticks(range(len(band)), names, fontsize=8, rotation=90 if self._are_upright else 0)
        axes.set_yticks(range(len(self.grid.rows)), self.grid.rows, fontsize=9)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)

    @property
    def _of_columns(self) -> str:
        container = self.grid.prefix.removesuffix(".")
        numbered = all(column.isdigit() for column in self.grid.columns)
        return f"Block{f' of {container}' if container else ''}" if numbered else container

    @property
    def _longest(self) -> int:
        return max(map(len, self.grid.columns))

    @property
    def _are_upright(self) -> bool:
        return self._longest > 2


def _row_of(kind: str) -> int:
    """Return the place of a kind among rows: larger units first, unknown kinds last."""
    return ROWS.index(kind) if kind in ROWS else len(ROWS)


def _status(name: str, left: Mapping[str, str]) -> str | None:
    """Replacement of a unit; `GONE` inside a larger removed unit, None if the unit is kept."""
    if name in left:
        return left[name]
    return GONE if any(name.startswith(removed + ".") for removed in left) else None


def _look(status: str | None) -> _Look:
    if status is None or status == GONE:
        return _Look(status or "kept", LIGHT, "", ink=GREY)
    return LOOKS.get(status, _Look(status.replace("_", " "), SKY, "", ink=BLACK))


def _draw_cell(axes: Axes, at: tuple[int, int], status: str | None, share: float) -> None:
    x, y = at
    look = _look(status)
    style: dict[str, Any] = {"facecolor": look.color, "edgecolor": "none"}
    if status == GONE:
        style = {"facecolor": "none", "edgecolor": GREY, "linestyle": ":"}
    shape = "round,pad=0,rounding_size=0.12"
    axes.add_patch(FancyBboxPatch((x - 0.43, y - 0.43), 0.86, 0.86, boxstyle=shape, linewidth=0.9, **style))
    if share > 0:
        axes.add_patch(Rectangle((x - 0.33, y + 0.23), 0.66 * share, 0.09, facecolor=look.ink, edgecolor="none"))
    if look.sign:
        height = y - (0.06 if share > 0 else 0)
        axes.text(x, height, look.sign, ha="center", va="center", fontsize=7.5, color=look.ink)


def _count(units: Mapping[str, str], left: Mapping[str, str], whole: bool) -> str:
    gone, there = (Counter(units[name] for name in names) for names in (left, units))
    counts = (f"{kind} {gone[kind]}" + f" of {there[kind]}" * whole for kind in sorted(gone, key=_row_of))
    return f"Removed: {', '.join(counts) or 'nothing'}"


def _handles(statuses: Sequence[str | None], bars: bool) -> list[Patch]:
    handles = [Patch(facecolor=LIGHT, label="kept")]
    for status in dict.fromkeys(s for s in statuses if s is not None and s != GONE):
        look = _look(status)
        handles.append(Patch(facecolor=look.color, label=f"removed, leaves {look.label}"))
    if GONE in statuses:
        handles.append(Patch(facecolor="none", edgecolor=GREY, linestyle=":", label=GONE))
    if bars:
        handles.append(Patch(facecolor=GREY, label="bar: importance, relative to its kind"))
    return handles
