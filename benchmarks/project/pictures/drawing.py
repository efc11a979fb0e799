"""Drawings of boxes, words and arrows as SVG: small, the same on every machine, readable on light and dark pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

# Class: colours on a light page, on a dark one. Tints of the colours of Okabe and Ito, as in the figures.
FILLS = {
    "paper": ("#ffffff", "#1b1d22"),
    "band": ("#f2f4f7", "#24272e"),
    "plain": ("#ffffff", "#30343d"),
    "blue": ("#d8e9f5", "#123f5c"),
    "orange": ("#fbe6bd", "#5c4305"),
    "green": ("#cfeee2", "#0c4a37"),
    "red": ("#f9dccb", "#642f0c"),
    "grey": ("#e3e5e8", "#3d414a"),
    "gone": ("none", "none"),
}
STROKES = {
    "line": ("#7d828a", "#8f959e"),
    "thin": ("#dfe2e6", "#3a3e47"),
    "stroke-blue": ("#0072b2", "#56b4e9"),
    "stroke-green": ("#009e73", "#2fc79b"),
    "stroke-orange": ("#b87e00", "#e69f00"),
    "stroke-red": ("#d55e00", "#f07f2e"),
}
INK, SOFT = ("#1a1a1a", "#f0f0f0"), ("#5c6066", "#b4b8bf")
FONT = "font-family:Helvetica,Arial,'DejaVu Sans',sans-serif"
LETTER = 0.56  # width of a letter, in sizes of the font


@dataclass
class Drawing:
    """A drawing, from the upper left corner on, in pixels.

    Attributes:
        width: Width.
        height: Height.
        title: Description for readers without the picture.
    """

    width: int
    height: int
    title: str
    _parts: list[str] = field(default_factory=list)

    def box(
        self, x: float, y: float, width: float, height: float, text: str = "", fill: str = "plain", size: float = 12
    ) -> None:
        """Draw a box with centred lines of text.

        Args:
            x: Left side.
            y: Upper side.
            width: Width.
            height: Height.
            text: Lines of text, softer after the first.
            fill: Key of `FILLS`.
            size: Font size.
        """
        edge = " dash" if fill == "gone" else "" if fill == "band" else " edge"
        place = f'x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="{height:.0f}" rx="5"'
        self._parts.append(f'<rect class="{fill}{edge}" {place}/>')
        lines = text.split("\n") if text else []
        step = size * 1.3
        top = y + height / 2 - step * (len(lines) - 1) / 2 + size * 0.36
        for number, line in enumerate(lines):
            self.text(x + width / 2, top + step * number, line, size, soft=number > 0)

    def text(self, x: float, y: float, text: str, size: float = 12, where: str = "middle", soft: bool = False) -> None:
        """Write a line.

        Args:
            x: Position of the start, the centre or the end.
            y: Base line.
            text: Text.
            size: Font size.
            where: "start", "middle" or "end".
            soft: Whether the line is less important.
        """
        kind = "soft" if soft else "ink"
        place = f'x="{x:.0f}" y="{y:.0f}" font-size="{size:g}" text-anchor="{where}"'
        self._parts.append(f'<text class="{kind}" {place}>{escape(text)}</text>')

    def curve(self, points: Sequence[tuple[float, float]]) -> None:
        """Draw a line with a head at the end, vertical at every point."""
        x, y = points[0]
        path = f"M{x:.0f} {y:.0f}"
        for to_x, to_y in points[1:]:
            middle = (y + to_y) / 2
            path += f"C{x:.0f} {middle:.0f} {to_x:.0f} {middle:.0f} {to_x:.0f} {to_y:.0f}"
            x, y = to_x, to_y
        self._parts.append(f'<path class="line" d="{path}" marker-end="url(#head)"/>')

    def line(self, points: Sequence[tuple[float, float]], stroke: str = "line") -> None:
        """Draw a line through points.

        Args:
            points: Two or more.
            stroke: Key of `STROKES`.
        """
        path = " L".join(f"{x:.0f} {y:.0f}" for x, y in points)
        self._parts.append(f'<path class="{stroke}" d="M{path}"/>')

    def dot(self, x: float, y: float, stroke: str) -> None:
        """Draw a dot in the colour of a line."""
        self._parts.append(f'<circle class="{stroke} paper" cx="{x:.0f}" cy="{y:.0f}" r="4"/>')

    def svg(self) -> str:
        """Return the file."""
        size = f'width="{self.width}" height="{self.height}" viewBox="0 0 {self.width} {self.height}"'
        head = '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" style="{FONT}">',
            f"<title>{escape(self.title)}</title>",
            f"<style>{_rules(0)}\n@media (prefers-color-scheme: dark){{{_rules(1)}}}</style>",
            f'<defs>{head}<path class="tip" d="M0 0L8 4L0 8z"/></marker></defs>',
            f'<rect class="paper" width="{self.width}" height="{self.height}" rx="8"/>',
            *self._parts,
            "</svg>",
        ]
        return "\n".join(lines) + "\n"


def width_of(text: str, size: float = 12) -> float:
    """Return about how wide a line is."""
    return LETTER * size * len(text)


def _rules(dark: int) -> str:
    line = STROKES["line"][dark]
    strokes = [f".{name}{{stroke:{colours[dark]};fill:none}}" for name, colours in STROKES.items()]
    fills = [f".{name}{{fill:{colours[dark]}}}" for name, colours in FILLS.items()]
    words = f".ink{{fill:{INK[dark]}}}.soft{{fill:{SOFT[dark]}}}.tip{{fill:{line}}}"
    edges = f".edge{{stroke:{line}}}.dash{{stroke:{line};stroke-dasharray:4 3}}"
    return "".join([*strokes, *fills, words, edges, '[class^="stroke"]{stroke-width:2.5}'])
