"""Pictures of the documents: the committed ones are up to date."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from cases.docs.blocks import pages, read

from benchmarks.project.pictures import FOLDER, PICTURES, house, latency
from benchmarks.runner.rows import Figure, Row

FILES = sorted(FOLDER.glob("*.svg"))


@pytest.mark.parametrize("name", PICTURES)
def test_a_committed_picture_is_todays(name: str) -> None:
    assert (FOLDER / f"{name}.svg").read_text() == PICTURES[name]().svg(), "python -m benchmarks.project.pictures"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_picture_has_a_title_and_is_on_a_page(path: Path) -> None:
    text = path.read_text()
    assert ElementTree.fromstring(text).findtext("{*}title")
    assert len(text) < 21_000
    assert any(f"pictures/{path.name})" in read(page) for page in (*pages(), "CONTRIBUTING.md"))


def test_imports_of_folders_lead_down_the_house_or_stay_on_a_floor() -> None:
    imports = house.folders()
    floors = house.floors_of(imports)
    assert {name for names in house.FLOORS.values() for name in names} <= set(imports)
    assert [(a, b) for a, named in imports.items() for b in named if floors[b] > floors[a]] == []


def test_a_new_folder_stands_as_high_as_what_it_imports() -> None:
    planted = {"attic": {"plan", "planning"}, "planning": {"plan"}, "plan": set[str](), "cellar": set[str]()}
    floors = house.floors_of(planted)
    assert floors["attic"] == floors["planning"] > floors["plan"] > floors["cellar"] == 0


def test_rows_of_other_images_are_not_drawn_together(monkeypatch: pytest.MonkeyPatch) -> None:
    others = {"natural_call": Figure.of([1, 0]), "boundary_dpt": Figure.of([0, 1])}
    monkeypatch.setattr(latency, "rows", lambda page, _: [Row("dense", figures={"top1": others[page]})])
    with pytest.raises(ValueError, match="Expected the pages to be of the same images, but their dense networks"):
        latency.dense()


def test_a_method_without_rows_is_named() -> None:
    with pytest.raises(ValueError, match=r"rows of 'nobody' in boundary_dpt.json, but there are none. Name it"):
        latency.points("boundary_dpt", "nobody")
