"""The picture of the house: folders by floor from the ground up, and who imports whom.

Boxes are folders, and files of the package's root; a subfolder has a box of its own where its parent would close a
circle. Arrows lead to imported folders; redundant arrows are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import networkx as nx

from benchmarks.project.imports import Imports, circle, imports_of, sources, without_front_door
from benchmarks.project.pictures.drawing import Drawing, width_of

# From the ground up: title, and folders; imports lead down, or stay on a floor.
FLOORS: Mapping[str, tuple[str, ...]] = {
    "ground": ("version", "refusal", "files", "display"),
    "network and\nplan as data": ["model", "cost.units", "plan", "families", "cost", "graph", "divergence"],
    "change,\nfit, score": ("surgery", "calibration", "store", "importance", "recovery"),
    "where it may\nbe smaller": ["session", "width", "depth.search", "depth.layers", "sites", "library", "depth"],
    "choose": ["frontiers", "solvers", "boundary", "sensitivity_table", "planning"],
    "keep, report,\nserve": ["quality", "checkpoint", "report", "language", "apply", "routing", "prune_model"],
    "Lightning": ("callbacks",),
    "command line": ("recipes",),
}
WIDTH, LEFT, ROW, BOX, GAP, SWEEPS = 780, 100, 52, 26, 16, 40
Places = dict[str, tuple[float, float, float]]  # centre, upper side and width of each folder


def folders() -> dict[str, set[str]]:
    """Return the imported folders of each folder; subfolders stand alone where a circle would close otherwise."""
    imports = without_front_door(imports_of(sources()))
    whole = _merged(imports, {name: name.split(".")[1] for name in imports})
    tangled = set().union(*(part for part in nx.strongly_connected_components(_graph(whole)) if len(part) > 1))
    home = {name: _folder(name) if name.split(".")[1] in tangled else name.split(".")[1] for name in imports}
    for folder in sorted({folder for folder in home.values() if "." in folder}):
        fewer = {name: folder.split(".")[0] if own == folder else own for name, own in home.items()}
        if not circle(_merged(imports, fewer)):
            home = fewer
    return _merged(imports, home)


def _folder(name: str) -> str:
    """Return the folder of a file, without the package's name; a file of the root stands for itself."""
    parts = name.split(".")[1:]
    is_folder = any(other.startswith(f"{name}.") for other in sources())
    return ".".join(parts if is_folder else parts[:-1] or parts)


def _merged(imports: Imports, home: Mapping[str, str]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {folder: set() for folder in home.values()}
    for name, files in imports.items():
        found[home[name]] |= {home[file] for file in files} - {home[name]}
    return found


def _graph(imports: Imports) -> nx.DiGraph:
    graph = nx.DiGraph()
    graph.add_nodes_from(sorted(imports))
    graph.add_edges_from((name, other) for name in sorted(imports) for other in sorted(imports[name]))
    return graph


def floors_of(imports: Imports) -> dict[str, int]:
    """Return the floor of each folder, 0 at the ground; a folder outside `FLOORS` stands as high as its imports."""
    said = {name: number for number, names in enumerate(FLOORS.values()) for name in names}
    found: dict[str, int] = {}
    for folder in reversed(list(nx.topological_sort(_graph(imports)))):
        found[folder] = said.get(folder, max((found[other] for other in imports[folder]), default=0))
    return found


def rows_of(imports: Imports) -> list[list[str]]:
    """Return the folders row by row, from the top down, each below all importing folders."""
    height, floors = dict[str, int](), floors_of(imports)
    for folder in reversed(list(nx.lexicographical_topological_sort(_graph(imports)))):
        below = [other for other in imports[folder] if floors[other] == floors[folder]]
        height[folder] = 1 + max((height[other] for other in below), default=-1)
    levels = sorted({(floors[folder], height[folder]) for folder in imports}, reverse=True)
    return [sorted(name for name in imports if (floors[name], height[name]) == level) for level in levels]


def routed(rows: list[list[str]], arrows: nx.DiGraph) -> tuple[list[list[str]], list[list[str]]]:
    """Return the rows with a place for every passing arrow, and the stops of each arrow."""
    rows, stops = [list(row) for row in rows], []
    at = {name: number for number, row in enumerate(rows) for name in row}
    for name, other in sorted(arrows.edges):
        between = [f"{name}>{other}>{number}" for number in range(at[name] + 1, at[other])]
        for number, stop in enumerate(between, at[name] + 1):
            rows[number].append(stop)
        stops.append([name, *between, other])
    return rows, stops


def placed(rows: list[list[str]], stops: list[list[str]], floors: Mapping[str, int]) -> Places:
    """Return the places of all stops, near their neighbours on the arrows."""
    centre = {name: WIDTH * (place + 1) / (len(row) + 1) for row in rows for place, name in enumerate(row)}
    near: dict[str, list[str]] = {name: [] for name in centre}
    for name, other in (pair for arrow in stops for pair in pairwise(arrow)):
        near[name].append(other)
        near[other].append(name)
    for sweep in range(SWEEPS):
        for row in rows if sweep % 2 else rows[::-1]:
            wanted = {name: sum(centre[other] for other in near[name]) / max(1, len(near[name])) for name in row}
            centre |= _spread(row, {name: x if near[name] else centre[name] for name, x in wanted.items()})
    places, y, floor = {}, 20.0, floors[rows[0][0]]
    for row in rows:
        y += GAP if floors[row[0]] != floor else 0
        floor = floors[row[0]]
        places |= {name: (centre[name], y, _width(name)) for name in row}
        y += ROW
    return places


def _width(name: str) -> float:
    return 0 if ">" in name else width_of(name) + 22


def _spread(row: list[str], wanted: Mapping[str, float]) -> dict[str, float]:
    """Return the centres of a row, near the wanted centres, without overlap and inside the picture."""
    found, least = dict[str, float](), 0.0
    ordered = sorted(row, key=lambda name: (wanted[name], name))
    for name in ordered:
        found[name] = max(wanted[name], least + _width(name) / 2)
        least = found[name] + _width(name) / 2 + GAP
    shift = sum(wanted[name] - found[name] for name in row) / len(row)
    first, last = ordered[0], ordered[-1]
    shift = min(shift, WIDTH - GAP - found[last] - _width(last) / 2)
    shift = max(shift, LEFT + GAP - found[first] + _width(first) / 2)
    return {name: x + shift for name, x in found.items()}


def draw_house() -> Drawing:
    """Return the picture of the imports of today."""
    imports = folders()
    rows, stops = routed(rows_of(imports), nx.transitive_reduction(_graph(imports)))
    floors = floors_of(imports)
    places = placed(rows, stops, floors)
    bottom = max(y for _, y, _ in places.values()) + ROW
    drawing = Drawing(WIDTH, round(bottom), "Folders of prunerecover by floor, and which imports which")
    for number, title in enumerate(FLOORS):
        heights = [places[name][1] for name, floor in floors.items() if floor == number]
        top, end = min(heights) - 11, max(heights) + BOX + 11
        drawing.box(8, top, WIDTH - 16, end - top, fill="band")
        for line, words in enumerate(title.split("\n")):
            drawing.text(18, (top + end) / 2 + 4 + 15 * (line - title.count("\n") / 2), words, 12, "start", soft=True)
    for arrow in stops:
        drawing.curve([part for name in arrow for part in _ends(places[name], name)][1:-1])
    for name in imports:
        x, y, width = places[name]
        fill = "green" if name in ("callbacks", "recipes") else "blue"
        drawing.box(x - width / 2, y, width, BOX, name.replace(".", "/"), fill)
    return drawing


def _ends(place: tuple[float, float, float], name: str) -> list[tuple[float, float]]:
    """Return the ends of arrows into and out of a stop."""
    x, y, _ = place
    return [(x, y), (x, y + BOX)]
