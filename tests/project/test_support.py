"""docs/support.md lists the supported features of each family of models; a sample of its cells is run here.

`python -m benchmarks.project.support_matrix` runs every cell before writing the page.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from cases.paths import ROOT
from cases.support.checks import COLUMNS, outcome
from cases.support.families import FAMILIES
from cases.support.page import markdown

PAGE = ROOT / "docs" / "support.md"


def cells() -> list[object]:
    """Return a third of the applicable cells as parameters; of quick rows two thirds, half of them fast.

    The choice rotates over rows and columns, so that each has some of its cells here.
    """
    found = []
    for row, (name, family) in enumerate(FAMILIES.items()):
        for place, column in enumerate(COLUMNS):
            turn = (row + place) % 3
            if family.reason(column) is not None and turn < (2 if family.quick else 1):
                marks = () if turn == 0 and family.quick and column != "ONNX" else pytest.mark.slow
                found.append(pytest.param(name, column, marks=marks, id=f"{name}-{column}"))
    return found


@pytest.mark.parametrize(("name", "column"), cells())
def test_a_cell_is_what_happens(name: str, column: str, tmp_path: Path) -> None:
    message = outcome(FAMILIES[name], column, tmp_path)
    assert FAMILIES[name].is_expected(column, message), message or "it works now"


def test_every_row_and_every_column_is_among_the_cells() -> None:
    names, columns = zip(*(cell.values for cell in cells()), strict=True)  # type: ignore[attr-defined]
    assert set(names) == FAMILIES.keys()
    assert set(columns) == COLUMNS.keys()


def test_rows_name_columns_alone() -> None:
    for family in FAMILIES.values():
        assert {*family.works, *family.refused} <= COLUMNS.keys()
        assert not {*family.works} & family.refused.keys()


def test_the_page_is_the_table() -> None:
    text = PAGE.read_text()
    (versions,) = (line for line in text.splitlines() if line.startswith("Versions: "))
    assert text == markdown(versions), "write it anew: python -m benchmarks.project.support_matrix"
