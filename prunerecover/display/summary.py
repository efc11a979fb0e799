"""Summaries of objects, as `print` and notebooks show them: a line and a short table; and calls as text, for `repr`."""

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
    """A line, and the rows of a table that fit beside it.

    Attributes:
        title: The line.
        header: Names of the columns.
        rows: Cells, one for each column; of a list, `shown_of` makes as many as fit.
        more: What is left out, as a last line; empty if nothing is.
    """

    title: str
    header: Sequence[str] = ()
    rows: Sequence[Sequence[object]] = ()
    more: str = ""

    @classmethod
    def of_list(
        cls, title: str, header: Sequence[str], things: Sequence[T], row: Callable[[T], Sequence[object]]
    ) -> Summary:
        """Return the summary of a list, which shows as many of its first things as there are lines for.

        >>> print(Summary.of_list("numbers", ("n", "square"), range(40), lambda n: (n, n * n)).text().splitlines()[-2:])
        ['8  64', '… and 31 more']
        """
        room = MOST - 2
        shown = things if len(things) <= room else things[: room - 1]
        left = len(things) - len(shown)
        return cls(title, header, [row(thing) for thing in shown], f"… and {left} more" if left else "")

    def text(self) -> str:
        """Return it in columns.

        >>> print(Summary("Plan", ("", "units"), [("head", 3)]).text())
        Plan
              units
        head  3
        """
        lines = [[_clipped(cell) for cell in line] for line in ([self.header] if self.rows else [])]
        lines += [[_clipped(cell) for cell in row] for row in self.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        table = ["  ".join(cell.ljust(n) for cell, n in zip(line, widths, strict=True)).rstrip() for line in lines]
        return "\n".join([self.title, *table, *([self.more] if self.more else [])])

    def html(self) -> str:
        """Return it as a table for notebooks.

        >>> Summary("Plan", ("", "units"), [("head", 3)]).html()
        '<p>Plan</p><table><tr><th></th><th>units</th></tr><tr><td>head</td><td>3</td></tr></table>'
        """
        lines = [("th", self.header)] * bool(self.rows) + [("td", row) for row in self.rows]
        cells = ("".join(f"<{tag}>{escape(_clipped(cell))}</{tag}>" for cell in line) for tag, line in lines)
        table = "".join(f"<tr>{line}</tr>" for line in cells)
        more = f"<p>{escape(self.more)}</p>" if self.more else ""
        return f"<p>{escape(self.title)}</p>{f'<table>{table}</table>' if table else ''}{more}"


class Summarised:
    """Base of what is shown by its `summary`; `repr` stays what it is."""

    def summary(self) -> Summary:
        """Return what is shown."""
        raise NotImplementedError

    def __str__(self) -> str:
        """Return the summary, at most 12 lines."""
        return self.summary().text()

    def _repr_html_(self) -> str:
        return self.summary().html()

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))


def call_text(name: str, arguments: Mapping[str, Any]) -> str:
    """Return a call as Python writes it; of what has no short text there is only its type.

    >>> call_text("Prune", {"schedule": 10, "loss": max, "plan": list(range(99))})
    'Prune(schedule=10, loss=max, plan=<list>)'
    """
    return f"{name}({', '.join(f'{argument}={_shown(value)}' for argument, value in arguments.items())})"


def changed_fields(record: DataclassInstance) -> dict[str, Any]:
    """Return the fields of a dataclass that are not their defaults, by name."""
    values = {field: getattr(record, field.name) for field in fields(record)}
    return {field.name: value for field, value in values.items() if field.default is MISSING or value != field.default}


def listed(names: Iterable[str], most: int = 4) -> str:
    """Return the first names of a list.

    >>> listed("abcdef", 2)
    'a, b, …'
    """
    names = list(islice(names, most + 1))
    return ", ".join([*names[:most], *(["…"] if len(names) > most else [])])


def _clipped(cell: object) -> str:
    text = str(cell)
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 1]}…"


def _shown(value: object) -> str:
    if callable(value) and hasattr(value, "__qualname__"):
        return str(value.__qualname__)
    text = repr(str(value) if isinstance(value, Path) else value)
    return text if len(text) <= WIDEST and "\n" not in text and " at 0x" not in text else f"<{type(value).__name__}>"
