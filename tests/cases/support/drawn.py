"""Content of a plan's figure, read off its labels, cells and bars alone."""

from __future__ import annotations

import io

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure, FigureBase
from matplotlib.image import imread
from matplotlib.patches import FancyBboxPatch, Rectangle

from prunerecover.display.style import LIGHT


def cells(figure: FigureBase, kinds: dict[str, str]) -> dict[str, str]:
    """Return the colour of every unit's cell by name, "none" for outlines; each cell has exactly one unit.

    Args:
        figure: With cells.
        kinds: Kinds of all units by name; the labels of a cell must match exactly one unit.
    """
    lines = [axes for axes in figure.axes if any(isinstance(patch, FancyBboxPatch) for patch in axes.patches)]
    prefix = lines[-1].get_xlabel().removeprefix("Block of ").removeprefix("Block")
    found: dict[str, str] = {}
    for axes in lines:
        columns, rows = (
            [label.get_text() for label in labels] for labels in (axes.get_xticklabels(), axes.get_yticklabels())
        )
        for patch in axes.patches:
            if isinstance(patch, FancyBboxPatch):
                column, row = columns[round(patch.get_x() + 0.43)], rows[round(patch.get_y() + 0.43)]
                (name,) = _named(f"{prefix}.{column}".removeprefix("."), row, kinds)
                assert name not in found, f"two cells are of {name}"
                found[name] = "none" if patch.get_facecolor()[3] == 0 else to_hex(patch.get_facecolor())
    assert found.keys() == kinds.keys()
    return found


def _named(block: str, row: str, kinds: dict[str, str]) -> list[str]:
    exact = [name for name in kinds if name == f"{block}.{row}"]
    inside = [name for name in kinds if f"{name}.".startswith(f"{block}.") and kinds[name] == row]
    alone = [name for name in inside if name == block]
    return exact or alone or inside


def bars(axes: Axes) -> dict[str, tuple[float, str]]:
    """Return height and colour of the bars in front, by the names below them."""
    drawn = sorted((p for p in axes.patches if isinstance(p, Rectangle)), key=lambda patch: patch.get_x())
    front = [(p.get_height(), to_hex(p.get_facecolor())) for p in drawn if to_hex(p.get_facecolor()) != LIGHT]
    return dict(zip((label.get_text() for label in axes.get_xticklabels()), front, strict=True))


def explained(figure: Figure) -> list[str]:
    """Return the labels of the legend."""
    return [text.get_text() for text in figure.legends[0].get_texts()]


def rendered(figure: Figure) -> np.ndarray:
    """Return the picture's pixels."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=60)
    buffer.seek(0)
    return imread(buffer)[..., :3]


def is_whole(figure: Figure) -> bool:
    """Whether the figure has content, and none is cut off at the edges."""
    image = rendered(figure)
    edges = np.concatenate([image[0], image[-1], image[:, 0], image[:, -1]])
    return bool(image.min() < 0.5 and (edges == 1).all())
