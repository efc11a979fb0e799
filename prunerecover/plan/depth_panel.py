"""Picture of a pruned model: which units went, and what stands in their place.

One column per block, in order of depth, one row per kind of unit. A unit that went with a larger one around it (the
activation inside a removed MLP) is drawn as an outline. What the groups of channels, heads, neurons and experts keep is
a panel of its own, of `width_panel`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import FigureBase
from matplotlib.patches import FancyBboxPatch, Patch, Rectangle

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
    add_heading,
    add_legend,
    heading_height,
    legend_lines,
    new_axes,
)
from prunerecover.plan.kinds import DEPTH_KINDS, TRAITS
from prunerecover.plan.removed_units import RemovedUnit

ROWS = sorted(DEPTH_KINDS, key=lambda kind: len(TRAITS[kind].holds))
MANY = 40  # blocks; beyond, cells are too small for signs
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


class DepthPanel:
    """Cells: a column per block, a row per kind.

    Args:
        kinds: Of all units, by name.
        left: What is in the place of each removed unit, by name.
        bars: Importances by name.
        title: Heading; None: how many units of each kind went.
    """

    def __init__(
        self, kinds: Mapping[str, str], left: Mapping[str, str], bars: Mapping[str, float], title: str | None
    ) -> None:
        self.kinds, self.left, self.bars = kinds, left, bars
        self.rows = [*(k for k in ROWS if k in kinds.values()), *sorted(set(kinds.values()) - set(ROWS))]
        self.columns = list(dict.fromkeys(_block_of(name) for name in kinds))
        self.cell = min(0.46, 16 / len(self.columns))
        self.title = title or _count(kinds, left, self.rows)
        self.handles = _handles([_status(name, left) for name in kinds], any(value > 0 for value in self._tallest()))

    @property
    def width(self) -> float:
        """Room for all blocks."""
        return max(self.cell * len(self.columns) + 1.3, 4.6)

    def height(self, width: float) -> float:
        """Rows, numbers, heading and legend."""
        around = heading_height(self.title, width) + 0.2 * legend_lines(self._labels, width)
        return self.cell * len(self.rows) + 0.9 + around

    def draw(self, figure: FigureBase) -> None:
        """Draw the cells, and say what they mean."""
        axes = new_axes(figure)
        tallest = dict(zip(self.rows, self._tallest(), strict=True))
        for name, kind in self.kinds.items():
            at = (self.columns.index(_block_of(name)), self.rows.index(kind))
            share = max(self.bars.get(name, 0.0), 0.0) / tallest[kind] if tallest[kind] > 0 else 0.0
            _draw_cell(axes, at, _status(name, self.left), share, signs=len(self.columns) <= MANY)
        _label(axes, self.rows, self.columns)
        add_heading(figure, self.title)
        add_legend(figure, self.handles, self._labels, "lower left")

    @property
    def _labels(self) -> list[str]:
        return [str(handle.get_label()) for handle in self.handles]

    def _tallest(self) -> list[float]:
        """Return the largest importance of every row."""
        values = [[self.bars.get(n, 0.0) for n, kind in self.kinds.items() if kind == row] for row in self.rows]
        return [max(row, default=0.0) for row in values]


def inferred_kinds(gone: Iterable[RemovedUnit], bars: Mapping[str, float]) -> dict[str, str]:
    """Guess all units: in every block up to the last one named, what has the removed units' places in theirs."""
    gone = tuple(gone)
    kinds = {_place(unit.name): unit.kind for unit in gone if _place(unit.name)}
    named = [_number(name) for name in (*(unit.name for unit in gone), *bars)]
    depth = max((n for n in named if n is not None), default=-1) + 1
    inferred = {place.format(i): kind for i in range(depth) for place, kind in kinds.items() if place}
    return inferred | {unit.name: unit.kind for unit in gone}


def _block_of(name: str) -> str:
    """`"model.layers.3.mlp.act_fn"` -> `"model.layers.3"`; names without a number are columns of their own."""
    parts = name.split(".")
    numbered = [i for i, part in enumerate(parts) if part.isdigit()]
    return ".".join(parts[: numbered[-1] + 1]) if numbered else name


def _number(name: str) -> int | None:
    """Number of the block that a name lies in."""
    last = _block_of(name).rpartition(".")[2]
    return int(last) if last.isdigit() else None


def _place(name: str) -> str:
    """`"blocks.3.attn"` -> `"blocks.{}.attn"`; empty for names without a number."""
    block = _block_of(name)
    if _number(name) is None:
        return ""
    return f"{block.rpartition('.')[0]}.{{}}{name.removeprefix(block)}"


def _status(name: str, left: Mapping[str, str]) -> str | None:
    """What is at a unit's place: what was left there, `GONE` if something around it went, None if it is still there."""
    if name in left:
        return left[name]
    return GONE if any(name.startswith(removed + ".") for removed in left) else None


def _look(status: str | None) -> _Look:
    if status is None or status == GONE:
        return _Look(status or "kept", LIGHT, "", ink=GREY)
    return LOOKS.get(status, _Look(status.replace("_", " "), SKY, "", ink=BLACK))


def _draw_cell(axes: Axes, at: tuple[int, int], status: str | None, share: float, signs: bool) -> None:
    x, y = at
    look = _look(status)
    style: dict[str, Any] = {"facecolor": look.color, "edgecolor": "none"}
    if status == GONE:
        style = {"facecolor": "none", "edgecolor": GREY, "linestyle": ":"}
    shape = "round,pad=0,rounding_size=0.12"
    axes.add_patch(FancyBboxPatch((x - 0.43, y - 0.43), 0.86, 0.86, boxstyle=shape, linewidth=0.9, **style))
    if share > 0:
        axes.add_patch(Rectangle((x - 0.33, y + 0.23), 0.66 * share, 0.09, facecolor=look.ink, edgecolor="none"))
    if signs and look.sign:
        height = y - (0.06 if share > 0 else 0)
        axes.text(x, height, look.sign, ha="center", va="center", fontsize=7.5, color=look.ink)


def _label(axes: Axes, kinds: Sequence[str], columns: Sequence[str]) -> None:
    step = 1 if len(columns) <= MANY else 5
    numbers = [column.rpartition(".")[2] for column in columns]
    axes.set_xlim(-0.6, len(columns) - 0.4)
    axes.set_ylim(len(kinds) - 0.4, -0.6)
    axes.set_aspect("equal")
    axes.set_xticks(range(0, len(columns), step), numbers[::step], fontsize=8)
    axes.set_yticks(range(len(kinds)), kinds, fontsize=9)
    axes.set_xlabel("Block", fontsize=9)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _count(units: Mapping[str, str], left: Mapping[str, str], kinds: Sequence[str]) -> str:
    counts = ((kind, sum(units[n] == kind for n in left), sum(k == kind for k in units.values())) for kind in kinds)
    return "Removed: " + (", ".join(f"{kind} {n} of {total}" for kind, n, total in counts if n) or "nothing")


def _handles(statuses: Sequence[str | None], bars: bool) -> list[Patch]:
    handles = [Patch(facecolor=LIGHT, label="kept")]
    for status in dict.fromkeys(s for s in statuses if s is not None and s != GONE):
        look = _look(status)
        handles.append(Patch(facecolor=look.color, label=f"removed, leaves {look.label}"))
    if GONE in statuses:
        handles.append(Patch(facecolor="none", edgecolor=GREY, linestyle=":", label=GONE))
    if bars:
        handles.append(Patch(facecolor=GREY, label="bar: importance in its row"))
    return handles
