"""Who may import whom; docs/architecture.md has the picture.

A file imports only from its own folder and from earlier ones in `ORDER`, and files import in no circle.
"""

from __future__ import annotations

from collections import Counter

import pytest
from cases.paths import ROOT

from benchmarks.project.imports import (
    FOLDERS,
    FRONT_DOOR,
    Imports,
    circle,
    imports_of,
    named_in,
    python_files,
    sources,
    without_front_door,
)

# From the ground up, in the package; a name stands for a file, or for a folder without the folders in it.
FLOORS = """
version former refusal files display quality
model model.narrow cost.units serving runtimes plan frontiers families.libraries families cost
graph.dimensions graph surgery.forward surgery
divergence store calibration importance.measuring importance language recovery.blocks recovery session
width.rewrites width.heads width.groups width.allocation width
depth.search depth.layers sites library depth
sensitivity_table boundary solvers planning checkpoint report apply prune_model routing
callbacks.ledger callbacks.calibration callbacks.surgery callbacks.planning callbacks.distillation callbacks.logs
callbacks.schedules callbacks callbacks.trainers callbacks.trials
recipes.networks recipes.networks.detectors recipes.data recipes.data.language recipes.tasks recipes.plan_methods
recipes recipes.cli
"""
ORDER = [f"prunerecover.{name}" for name in FLOORS.split()]
ENGINE = ORDER[: ORDER.index("prunerecover.routing") + 1]
NOT_IN_THE_ENGINE = ("lightning", "pytorch_lightning")
NOWHERE = ("callbacks", "recipes", "configs", "ultralytics")  # twin modules; AGPL code
# Opening a file of an ultralytics model without the dense one: a function imports the user's installed package.
ALLOWED = {"prunerecover.families.libraries.ultralytics_constructor": {"ultralytics.nn", "ultralytics.nn.tasks"}}
MOST_FILES, MOST_LINES = 14, 300
SOURCES = sources()


def place(name: str) -> int:
    """Return the height of a file; folders without a place raise an error."""
    return ORDER.index(name if name in ORDER else name.rpartition(".")[0])


def upward(imports: Imports) -> list[str]:
    return [f"{name} imports {file}" for name, files in imports.items() for file in files if place(file) > place(name)]


def test_every_file_has_a_place() -> None:
    for name in set(SOURCES) - set(FRONT_DOOR):
        assert place(name) >= 0
    assert set(ORDER) <= {name if name in SOURCES else "" for name in ORDER}


def test_no_file_imports_one_from_further_up() -> None:
    assert not upward(without_front_door(imports_of(SOURCES)))


def test_no_files_import_each_other_in_a_circle() -> None:
    assert not circle(without_front_door(imports_of(SOURCES)))


def test_imports_are_absolute_and_name_nothing_forbidden() -> None:
    for name, source in SOURCES.items():
        in_engine = any(f"{name}.".startswith(f"{part}.") for part in ENGINE)
        forbidden = NOWHERE + (NOT_IN_THE_ENGINE if in_engine else ())
        named = set(named_in(source)) - ALLOWED.get(name, set())
        assert not [m for m in named if m.startswith(".") or m.partition(".")[0] in forbidden], name


def test_configs_only_name_classes() -> None:
    assert [path.name for path in (ROOT / "configs").glob("*.py")] == ["__init__.py"]
    assert not named_in((ROOT / "configs" / "__init__.py").read_text())


@pytest.mark.parametrize("top", [*FOLDERS, "tests", "benchmarks"])
def test_folders_and_files_are_of_a_size_to_read(top: str) -> None:
    files = python_files(ROOT / top)
    held = Counter(path.parent for path in files if path.name != "__init__.py")
    assert not {folder: count for folder, count in held.items() if count > MOST_FILES}
    assert not [path for path in files if len(path.read_text().splitlines()) > MOST_LINES]


def test_a_planted_circle_is_found() -> None:
    planted = {**SOURCES, "prunerecover.plan.edits": "def f():\n    from prunerecover.plan import plan"}
    assert {"prunerecover.plan.edits", "prunerecover.plan.plan"} <= set(circle(without_front_door(imports_of(planted))))


def test_planted_imports_from_further_up_are_found() -> None:
    source = """from prunerecover.sites.find import find_units
if TYPE_CHECKING:
    from prunerecover.callbacks.pruning import PruneCallback
def f():
    from prunerecover.recipes.cli import main"""
    assert len(upward(without_front_door(imports_of({**SOURCES, "prunerecover.model.paths": source})))) == 3
