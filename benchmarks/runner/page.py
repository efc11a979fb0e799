"""Pages of benchmarks: tables of rows, paired differences with intervals, and, folded, commands, machines and versions.

A table has a line for each method, or for each value of the names in `line`; the rows of a line differ by seed. A
column makes a cell of each line. Columns may be repeated for each value of a name, such as the budget.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.runner.rows import Figure, Row, Scores
from prunerecover.cost.statistics import Interval, paired_difference
from prunerecover.display.markdown import table

Order = Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class Line:
    """Rows of a line, and all rows of its table for comparison."""

    rows: Sequence[Row]
    there: Sequence[Row]

    @property
    def first(self) -> Row:
        """Row of the first seed."""
        return self.rows[0]

    def only(self, **names: Any) -> Line:
        """Return the line with only the rows of these names, and the same rows for comparison."""
        return Line([row for row in self.rows if row.is_of(**names)], self.there)


@dataclass(frozen=True)
class Column:
    """Head of a column, and the function for its cells."""

    head: str
    cell: Callable[[Line], str]


@dataclass(frozen=True)
class Table:
    """Tables of rows, a table for each value of some names.

    Attributes:
        columns: Columns from left to right.
        title: Heading, a format of the names of the first row; empty: none.
        by: Names with a table for each value.
        line: Names with a line for each value.
        where: Condition of rows with a line; other rows serve for comparison.
        text: Function from the rows to the lines above a table.
    """

    columns: Sequence[Column]
    title: str = ""
    by: tuple[str, ...] = ()
    line: tuple[str, ...] = ("method",)
    where: Callable[[Row], bool] = lambda row: True
    text: Callable[[Sequence[Row]], str] = lambda rows: ""

    def markdown(self, rows: Sequence[Row], order: Order) -> list[str]:
        """Render the rows; names come in the given order, or in the order of the rows."""
        lines = []
        for own in grouped(rows, self.by, order):
            several = grouped([row for row in own if self.where(row)], self.line, order)
            if not several:
                continue
            cells = [[column.cell(Line(_by_seed(each), own)) for column in self.columns] for each in several]
            first = several[0][0]
            names = {**first.notes, **first.names}
            title = self.title.format_map(
                {k: v.replace("_", " ") if isinstance(v, str) else v for k, v in names.items()}
            )
            above = [part for part in (title and f"## {title}", self.text(own)) if part]
            body = [table([column.head for column in self.columns], cells)] if self.columns else []
            lines += [line for part in (*above, *body) for line in (part, "")]
        return lines


def grouped(rows: Sequence[Row], names: Sequence[str], order: Order | None = None) -> list[list[Row]]:
    """Return rows in groups with equal names; values without an order come in the order of the rows."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(repr([row.get(name) for name in names]), []).append(row)
    given = order or {}
    places = {name: [*given.get(name, ()), *(row.get(name) for row in rows)] for name in names}
    return sorted(found.values(), key=lambda own: [places[name].index(own[0].get(name)) for name in names])


def _by_seed(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: row.get("seed") or 0)


def told(found: Interval | Figure, digits: int = 1, scale: float = 1, sign: str = "", unit: str = "") -> str:
    """Return a number with its interval.

    >>> told(Interval(0.812, 0.8, 0.9), 1, 100)
    '81.2 (80.0 to 90.0)'
    """
    value, *ends = (
        "" if number is None else f"{scale * number:{sign}.{digits}f}"
        for number in (found.value, found.low, found.high)
    )
    return f"{value}{unit} ({' to '.join(ends)})" if all(ends) else f"{value}{unit}"


def text(name: str, head: str = "", form: str = "{}") -> Column:
    """Return the column of a name or note of the first row; empty where there is none."""

    def cell(line: Line) -> str:
        value = line.first.get(name) if line.rows else None
        return "" if value is None else form.format(value)

    return Column(head or name, cell)


def mean(name: str, head: str) -> Column:
    """Return the column of the mean of a share in a note over the rows of a line, in percent."""

    def cell(line: Line) -> str:
        values = [row[name] for row in line.rows if row.get(name) is not None]
        return f"{np.mean(values):.1%}" if values else ""

    return Column(head, cell)


def counts(name: str, head: str, kinds: Sequence[str] = ()) -> Column:
    """Return the column of numbers of units in a note, by kind; of `kinds` alone, if given."""

    def cell(line: Line) -> str:
        found = line.first.get(name) or {}
        numbers = {kind: value if isinstance(value, int) else len(value) for kind, value in found.items()}
        if kinds:
            return ", ".join(str(numbers.get(kind, 0)) for kind in kinds)
        return ", ".join(f"{number} {kind}" for kind, number in numbers.items())

    return Column(head, cell)


def seeds() -> Column:
    """Return the column of the seeds."""
    return Column("seeds", lambda line: ", ".join(str(row["seed"]) for row in line.rows))


def figure(name: str, head: str, digits: int = 1, scale: float = 1, unit: str = "", ends: bool = True) -> Column:
    """Return the column of a figure: of a single seed with its interval, of several seeds the mean and each value.

    Args:
        name: Name of the figure.
        head: Head of the column.
        digits: Digits behind the point.
        scale: Factor; 100 for percent.
        unit: Text behind the number.
        ends: Whether to show the interval of a single seed.
    """

    def cell(line: Line) -> str:
        found = [row.figures[name] for row in line.rows if name in row.figures]
        if len(found) < 2:
            shown = [one if ends else replace(one, low=None) for one in found]
            return "".join(told(one, digits, scale, unit=unit) for one in shown)
        values = [scale * one.value for one in found]
        each = ", ".join(f"{value:.{digits}f}" for value in values)
        return f"{statistics.mean(values):.{digits}f}{unit} ({each})"

    return Column(head, cell)


def signed(name: str, head: str, digits: int = 1, scale: float = 1) -> Column:
    """Return the column of the first row's figure, as a signed difference."""

    def cell(line: Line) -> str:
        found = line.first.figures.get(name)
        return "" if found is None else told(found, digits, scale, "+")

    return Column(head, cell)


def ahead(
    name: str,
    head: str,
    digits: int = 1,
    scale: float = 1,
    *,
    same: Sequence[str] = (),
    turned: bool = False,
    **base: Any,
) -> Column:
    """Return the column of how far the rows of some names are ahead of a line's, on the same samples.

    Args:
        name: Name of the figure.
        head: Head of the column.
        digits: Digits behind the point.
        scale: Factor; 100 for percent.
        same: Names in common between a line and the rows of its comparison.
        turned: Whether the line is said to be ahead, instead.
        base: Names of the rows to compare with.
    """

    def cell(line: Line) -> str:
        if not line.rows:
            return ""
        names = {**base, **{one: line.first[one] for one in same}}
        others = [row for row in line.there if row.is_of(**names) and name in row.figures]
        if any(row in others for row in line.rows):
            return ""
        return difference(*(line.rows, others) if turned else (others, line.rows), name, digits, scale)

    return Column(head, cell)


def across(name: str, values: Sequence[Any], columns: Sequence[Column], form: str = "{}") -> list[Column]:
    """Return columns for each value of a name; `{}` in a head becomes the value."""

    def only(column: Column, value: Any) -> Column:
        head = column.head.replace("{}", form.format(value))
        return Column(
            head, lambda line: column.cell(line.only(**{name: value})) if line.only(**{name: value}).rows else ""
        )

    return [only(column, value) for value in values for column in columns]


def mean_scores(rows: Sequence[Row], name: str) -> Scores:
    """Return the score of every sample, the mean over rows of several seeds."""
    return np.asarray(np.mean([row.figures[name].scores for row in rows], axis=0))


def difference(ours: Sequence[Row], theirs: Sequence[Row], name: str, digits: int = 1, scale: float = 1) -> str:
    """Return ours minus theirs on the same samples, over common seeds, with the paired 95% interval."""
    found = paired(ours, theirs, name)
    return "" if found is None else told(found, digits, scale, "+")


def paired(ours: Sequence[Row], theirs: Sequence[Row], name: str) -> Interval | None:
    """Return the interval of ours minus theirs; None without a common seed."""
    own, other = ({row.get("seed") for row in rows if name in row.figures} for rows in (ours, theirs))
    both = own & other
    first, second = ([row for row in rows if row.get("seed") in both] for rows in (theirs, ours))
    return paired_difference(mean_scores(first, name), mean_scores(second, name), seed=0) if both else None


def folded(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Render the commands, machines and versions behind a page, out of the reader's way."""
    machines = sorted({run["processor"] for run in runs if run.get("processor")})
    installed = sorted(
        {", ".join(f"{k} {v}" for k, v in run["versions"].items()) for run in runs if run.get("versions")}
    )
    lines = ["<details><summary>Commands, machine and versions</summary>", ""]
    lines += [f"- `{run['command']}`" for run in runs]
    return [*lines, "", *(f"{line}." for line in (*machines, *installed)), "", "</details>"]
