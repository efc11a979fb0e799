"""Tables in Markdown."""

from __future__ import annotations

import pytest

from prunerecover.display.markdown import table


def test_a_table_has_a_line_per_row() -> None:
    assert table(("a", "b"), [("1", ""), ("2", "`x`")]) == "| a | b |\n|---|---|\n| 1 |  |\n| 2 | `x` |"


def test_columns_are_aligned() -> None:
    assert table(("", "a", "b"), [], "lrr") == "|  | a | b |\n| :-- | --: | --: |"


@pytest.mark.parametrize("row", [("1",), ("1", "2", "3")])
def test_a_row_of_another_length_is_refused(row: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=f"Expected 2 cells in every row of the table, but got {len(row)}"):
        table(("a", "b"), [row])
