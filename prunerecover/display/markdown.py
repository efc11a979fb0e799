"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

RULES = {"-": "---", "l": " :-- ", "r": " --: "}


def table(header: Sequence[str], rows: Iterable[Sequence[object]], align: str = "") -> str:
    """Return a table, without a final newline.

    Args:
        header: Names of the columns.
        rows: Cells, one for each column; the text of a cell counts as Markdown.
        align: Letters per column, "l" or "r"; empty: alignment by the page's renderer.

    Raises:
        ValueError: If a row has more or fewer cells than the header.

    >>> print(table(("kind", "units"), [("head", 3)]))
    | kind | units |
    |---|---|
    | head | 3 |
    >>> print(table(("", "dense"), [("MACs", "1.3 G")], "lr"))
    |  | dense |
    | :-- | --: |
    | MACs | 1.3 G |
    """
    rows = list(rows)
    wrong = next((row for row in rows if len(row) != len(header)), None)
    if wrong is not None:
        raise ValueError(f"Expected {len(header)} cells in every row of the table, but got {len(wrong)}: {wrong}.")
    rule = "|".join(RULES[letter] for letter in align or "-" * len(header))
    return "\n".join([_line(header), f"|{rule}|", *map(_line, rows)])


def _line(cells: Sequence[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"
