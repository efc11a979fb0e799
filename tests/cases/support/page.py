"""Support matrix as Markdown: families by columns, messages of refused cells, and runtimes by tasks."""

from __future__ import annotations

from cases.paths import ROOT
from cases.support.checks import COLUMNS
from cases.support.families import FAMILIES

from benchmarks.edge.runtimes import BY_NAME
from benchmarks.edge.subjects import BY_TASK
from benchmarks.runner.rows import Results, Row

PAGE = ROOT / "docs" / "support.md"


def markdown(versions: str) -> str:
    """Return the page with today's tables, its own text around them, and a line with the versions of the libraries."""
    text = PAGE.read_text()
    above = text[: text.index("| family |") - 1]
    between = text[text.index("## On small devices") : text.index("| runtime |") - 1]
    notes: list[str] = []
    rows = []
    for name, family in FAMILIES.items():
        cells = [_cell(family.reason(column), column, notes) for column in COLUMNS]
        rows.append(f"| {name} | {family.library} | {' | '.join(cells)} |")
    head = [f"| family | library | {' | '.join(COLUMNS)} |", "|---" * (2 + len(COLUMNS)) + "|"]
    messages = [f'{number}. "{note} ..."' for number, note in enumerate(notes, 1)]
    return "\n".join([above, *head, *rows, "", *messages, "", versions, "", between, *edge_table(), ""])


def edge_table() -> list[str]:
    """Return the lines of the table of runtimes by tasks, from the committed measurement."""
    rows = Results.read("edge_matrix").rows
    tasks, runtimes = BY_TASK, BY_NAME
    by = {(row["runtime"], row["task"]): _edge_cell(row) for row in rows}
    lines = [f"| {name} | {' | '.join(by.get((name, task), 'not measured') for task in tasks)} |" for name in runtimes]
    return [f"| runtime | {' | '.join(tasks)} |", "|---" * (1 + len(tasks)) + "|", *lines]


def _edge_cell(row: Row) -> str:
    state: str = row["state"].partition(":")[0]
    said = [f"time {row.figures['time'].value:.2f}"] if "time" in row.figures else []
    said += [f"int8 {row.figures['int8_change'].value:+.2f}"] if "int8_change" in row.figures else []
    if state == "yes" and row.get("int8") != "yes":
        said += ["no int8"]
    return f"{state}: {', '.join(said)}" if said else state


def _cell(reason: str | None, column: str, notes: list[str]) -> str:
    """Return a cell, and add its message to the notes if new."""
    if reason is None:
        return "-"
    if not reason:
        return "yes"
    if reason not in notes:
        notes.append(reason)
    return f"no ({notes.index(reason) + 1})"
