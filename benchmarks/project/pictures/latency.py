"""README's picture: accuracy over latency of DeiT-Tiny, of the default and of rivals on the same images."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.project.pictures.drawing import Drawing
from benchmarks.runner.rows import Results, Row

# Label: page of results, method on it, and colour.
METHODS: Mapping[str, tuple[str, str, str]] = {
    "prunerecover, depth and width: Prune": ("natural_call", "Prune (joint)", "stroke-blue"),
    "prunerecover, depth alone: DepthPrune": ("natural_call", "DepthPrune default", "stroke-green"),
    "whole blocks, by Block Influence": ("boundary_dpt", "f whole blocks, Block Influence", "stroke-orange"),
    "torch-pruning, Taylor, isomorphic": ("boundary_dpt", "g torch-pruning, isomorphic", "stroke-red"),
}
LEFT, RIGHT, TOP, BOTTOM = 56, 744, 52, 318  # edges of the axes in pixels
LEAST, MOST = 0.4, 1.04  # latency
Point = tuple[float, float]  # share of the dense latency, top-1 in percent


def rows(page: str, method: str) -> list[Row]:
    """Return the rows of a method on DeiT-Tiny on a page of results."""
    found = Results.read(page).find(method=method)
    return [row for row in found if row.get("subject", "deit_tiny") == "deit_tiny"]


def dense() -> Point:
    """Return the point of the dense network without any training.

    Raises:
        ValueError: If the dense network's hits differ between the pages.
    """
    found = [rows(page, "dense")[0].figures["top1"] for page in ("natural_call", "boundary_dpt")]
    if len({top1.samples for top1 in found}) != 1:
        raise ValueError("Expected the pages to be of the same images, but their dense networks answer differently.")
    return 1.0, 100 * found[0].value


def points(page: str, method: str) -> list[Point]:
    """Return a method's points after the short recovery, for budgets of latency, the fastest first.

    Raises:
        ValueError: If the page has none.
    """
    found = [row for row in rows(page, method) if row["stage"] == "recovered"]
    timed = [row for row in found if row.get("cost", "latency") == "latency"]
    if not timed:
        raise ValueError(f"Expected rows of {method!r} in {page}.json, but there are none. Name it as the page does.")
    return sorted((row["latency_share"], 100 * row.figures["top1"].value) for row in timed)


def draw_latency() -> Drawing:
    """Return the picture."""
    title = "DeiT-Tiny, 200 classes of ImageNet: top-1 after one short epoch, over the measured latency"
    drawing = Drawing(760, 370, title)
    drawing.text(18, 28, title, 13, "start")
    for top1 in range(0, 61, 10):
        drawing.line([_at((LEAST, top1)), _at((MOST, top1))], "thin")
        drawing.text(LEFT - 8, _at((LEAST, top1))[1] + 4, str(top1), 11, "end", soft=True)
    for latency in range(40, 101, 10):
        drawing.text(_at((latency / 100, 0))[0], BOTTOM + 18, f"{latency}%", 11, soft=True)
    drawing.text((LEFT + RIGHT) / 2, BOTTOM + 38, "latency that is left", 12, soft=True)
    for number, (label, (page, method, stroke)) in enumerate(METHODS.items()):
        spots = [_at(point) for point in points(page, method)]
        drawing.line(spots, stroke)
        for x, y in spots:
            drawing.dot(x, y, stroke)
        y = BOTTOM - 84 + 21 * number
        drawing.line([(RIGHT - 270, y - 4), (RIGHT - 246, y - 4)], stroke)
        drawing.text(RIGHT - 238, y, label, 12, "start")
    x, y = _at(dense())
    drawing.dot(x, y, "line")
    drawing.text(x, y + 20, "dense", 12)
    return drawing


def _at(point: Point) -> tuple[float, float]:
    latency, top1 = point
    x = LEFT + (RIGHT - LEFT) * (latency - LEAST) / (MOST - LEAST)
    return x, BOTTOM - (BOTTOM - TOP) * top1 / 62
