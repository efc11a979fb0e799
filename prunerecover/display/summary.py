"""Summaries of objects for `print` and notebooks, a line and a short table; and calls as text, for `repr`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from html import escape
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

MOST = 12  # lines
WIDEST = 64  # letters of a cell
T = TypeVar("T")


@dataclass(frozen=True)
class Summary:
    """A line, and the rows of a table.

    Attributes:
        title: Line above the table.
        header: Names of the columns.
        rows: Cells, one for each column; for a list, `of_list` makes as many rows as fit.
        more: Last line on the rows left out; empty if all are shown.
        widest: Letters of a cell; longer cells are clipped.
        below: Second summary, shown below.
    """

    title: str
    header: Sequence[str] = ()
    rows: Sequence[Sequence[object]] = ()
    more: str = ""
    widest: int = WIDEST
    below: Summary | None = None

    @classmethod
    def of_list(
        cls,
        title: str,
        header: Sequence[str],
        things: Sequence[T],
        row: Callable[[T], Sequence[object]],
        most: int = MOST,
    ) -> Summary:
        """Return the summary of a list, with as many first entries as there are lines.

        Args:
            title: Line above the table.
            header: Names of the columns.
            things: All entries of the list.
            row: Function that makes the cells of an entry.
            most: Number of lines, including title and header.

        >>> print(Summary.of_list("numbers", ("n", "square"), range(40), lambda n: (n, n * n)).text().splitlines()[-2:])
        ['8  64', '… and 31 more']
        """
        room = most - 2
        shown = things if len(things) <= room else things[: room - 1]
        left = len(things) - len(shown)
        return cls(title, header, [row(thing) for thing in shown], f"… and {left} more" if left else "")

    def text(self) -> str:
        """Return the summary in columns.

        >>> print(Summary("Plan", ("", "units"), [("head", 3)]).text())
        Plan
              units
        head  3
        """
        lines = [[self._clipped(cell) for cell in line] for line in ([self.header] if self.rows else [])]
        lines += [[self._clipped(cell) for cell in row] for row in self.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        table = ["  ".join(cell.ljust(n) for cell, n in zip(line, widths, strict=True)).rstrip() for line in lines]
        more = [self.more] if self.more else []
        return "\n".join([self.title, *table, *more, *([self.below.text()] if self.below else [])])

    def html(self) -> str:
        """Return the summary as a table for notebooks.

        >>> Summary("Plan", ("", "units"), [("head", 3)]).html()
        '<p>Plan</p><table><tr><th></th><th>units</th></tr><tr><td>head</td><td>3</td></tr></table>'
        """
        lines = [("th", self.header)] * bool(self.rows) + [("td", row) for row in self.rows]
        cells = ("".join(f"<{tag}>{escape(self._clipped(cell))}</{tag}>" for cell in line) for tag, line in lines)
        table = "".join(f"<tr>{line}</tr>" for line in cells)
        more = f"<p>{escape(self.more)}</p>" if self.more else ""
        below = self.below.html() if self.below else ""
        return f"<p>{escape(self.title)}</p>{f'<table>{table}</table>' if table else ''}{more}{below}"

    def _clipped(self, cell: object) -> str:
        text = str(cell)
        return text if len(text) <= self.widest else f"{text[: self.widest - 1]}…"


class Summarised:
    """Base class of objects shown by `summary`; `repr` is unchanged."""

    def summary(self) -> Summary:
        """Return the summary for display."""
        raise NotImplementedError

    def __str__(self) -> str:
        """Return the summary, at most 12 lines."""
        return self.summary().text()

    def _repr_html_(self) -> str:
        return self.summary().html()

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))


def call_text(name: str, arguments: Mapping[str, Any]) -> str:
    """Return a call in Python's form; values without a short text show their type.

    >>> call_text("Prune", {"schedule": 10, "loss": max, "plan": list(range(99))})
    'Prune(schedule=10, loss=max, plan=<list>)'
    """
    return f"{name}({', '.join(f'{argument}={_shown(value)}' for argument, value in arguments.items())})"


def changed_fields(record: DataclassInstance) -> dict[str, Any]:
    """Return the fields of a dataclass that differ from their defaults, by name."""
    values = {field: getattr(record, field.name) for field in fields(record)}
    return {field.name: value for field, value in values.items() if field.default is MISSING or value != field.default}


def listed(names: Iterable[str], most: int = 4) -> str:
    """Return the first names of a list.

    >>> listed("abcdef", 2)
    'a, b, …'
    """
    names = list(islice(names, most + 1))
    return ", ".join([*names[:most], *(["…"] if len(names) > most else [])])


def _shown(value: object) -> str:
    if callable(value) and hasattr(value, "__qualname__"):
        return str(value.__qualname__)
    text = repr(str(value) if isinstance(value, Path) else value)
    return text if len(text) <= WIDEST and "\n" not in text and " at 0x" not in text else f"<{type(value).__name__}>"
