"""Pictures of the documents: vector graphics of plain text, the same bytes from the same input."""

from collections.abc import Callable, Mapping

from benchmarks.project.imports import ROOT
from benchmarks.project.pictures.drawing import Drawing
from benchmarks.project.pictures.house import draw_house
from benchmarks.project.pictures.latency import draw_latency

FOLDER = ROOT / "docs/pictures"
PICTURES: Mapping[str, Callable[[], Drawing]] = {
    "house": draw_house,
    "latency": draw_latency,
}
