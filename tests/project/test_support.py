"""docs/support.md says what works on which family of models; every cell of it is run here."""

from __future__ import annotations

from pathlib import Path

import pytest
from cases.paths import ROOT
from cases.support.checks import COLUMNS, outcome
from cases.support.families import FAMILIES
from cases.support.page import markdown

PAGE = ROOT / "docs" / "support.md"


def cells() -> list[object]:
    """Every cell that applies, as a parameter; those of quick families are fast, but for ONNX."""
    found = []
    for name, family in FAMILIES.items():
        for column in COLUMNS:
            if family.reason(column) is not None:
                marks = () if family.quick and column != "ONNX" else pytest.mark.slow
                found.append(pytest.param(name, column, marks=marks, id=f"{name}-{column}"))
    return found


@pytest.mark.parametrize(("name", "column"), cells())
def test_a_cell_is_what_happens(name: str, column: str, tmp_path: Path) -> None:
    message = outcome(FAMILIES[name], column, tmp_path)
    assert FAMILIES[name].is_expected(column, message), message or "it works now"


def test_rows_name_columns_alone() -> None:
    for family in FAMILIES.values():
        assert {*family.works, *family.refused} <= COLUMNS.keys()
        assert not {*family.works} & family.refused.keys()


def test_the_page_is_the_table() -> None:
    text = PAGE.read_text()
    (versions,) = (line for line in text.splitlines() if line.startswith("Versions: "))
    assert text == markdown(versions), "write it anew: python -m benchmarks.project.support_matrix"
