"""Shared parts of the zoo's pages: shares, lists of networks with reasons, and versions."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from benchmarks.runner.rows import RESULTS, command
from benchmarks.zoo.networks.suites import SUITES
from benchmarks.zoo.trial import FIXED, FREE, LATE, REFUSED, SLOW, Row
from prunerecover.cost.environment import cpu_name, versions
from prunerecover.cost.statistics import wilson_interval
from prunerecover.display.markdown import table
from prunerecover.files.atomic import write_text

FURTHER = ("torchvision", "ultralytics")
OUTCOMES = ("ok", "nothing", "refused", "failed", "dead", "over", "slow")
NOT_OK = OUTCOMES[2:]
LONGEST = 800  # characters of a reason


def stored(name: str, key: str = "rows") -> list[Row]:
    """Return the rows of earlier runs in the results of a name."""
    path = RESULTS / f"{name}.json"
    return list(json.loads(path.read_text()).get(key, [])) if path.is_file() else []


def write(result: Mapping[str, Any], page: Page) -> None:
    """Write the rows as JSON and the page, each at once: a killed run leaves the earlier ones."""
    record = {"command": command(), "cpu": cpu_name(), "versions": installed(), **result}
    write_text(RESULTS / f"{page.name}.json", json.dumps(record, indent=2) + "\n")
    write_text(RESULTS / f"{page.name}.md", page.markdown(record))


def counted(rows: Sequence[Row]) -> dict[str, int]:
    """Return how many rows have each outcome."""
    return {outcome: sum(row["outcome"] == outcome for row in rows) for outcome in OUTCOMES}


def share(ok: int, others: int) -> str:
    """Return a share in percent with Wilson's interval."""
    if not others:
        return ""
    found = wilson_interval(ok, others)
    return f"{ok} of {others}: {found.value:.1%} ({100 * found.low:.1f} to {100 * found.high:.1f})"


def rebuilt(rows: Sequence[Row]) -> list[str]:
    """Return a line on the networks of timm and transformers that were rebuilt without the dense network."""
    own = [row for row in rows if row["suite"] in ("timm", "transformers") and "rebuilt" in row]
    others = [row["name"] for row in own if not row["rebuilt"]]
    told = f", all but {', '.join(others)}" if others else ""
    made = f"{len(own) - len(others)} of {len(own)} of timm and transformers"
    return [f"Loaded from the saved folder alone, without a dense network: {made}{told}.", ""] if own else []


SILENT = (
    "Dead, over and slow: a parameter that had a gradient before the surgery has none after it; more goes than was "
    f"asked for and nothing says so; finding and planning take over {SLOW} s of processor time."
)


def silent(count: dict[str, int]) -> str:
    """Return the numbers of networks by silent failure.

    >>> silent({"ok": 3, "dead": 1, "over": 0, "slow": 2})
    '1, 0, 2'
    """
    return ", ".join(str(count[outcome]) for outcome in ("dead", "over", "slow"))


def not_tried(rows: Sequence[Row]) -> list[str]:
    """Return a line on networks whose silent failures are unknown, because their rows are earlier."""
    left = sum("dead" not in row for row in rows)
    told = f"Dead parameters are not tried yet of {left} networks, whose rows are of an earlier version."
    return [told, ""] if left else []


EXPORTED = (
    "ONNX: how many of those that were saved are exported by `export(model, path, batch)` and give the same outputs in "
    "onnxruntime, with free sizes, with fixed ones (`dynamic=False`), and refused."
)


def exports(rows: Sequence[Row]) -> str:
    """Return the numbers of exports with free sizes, with fixed sizes, and refused; empty if none was tried.

    >>> exports([{"onnx": "free sizes"}, {"onnx": "free sizes"}, {"onnx": "refused"}, {"onnx": None}])
    '2, 0, 1'
    """
    found = [row["onnx"] for row in rows if row.get("onnx")]
    return ", ".join(str(found.count(how)) for how in (FREE, FIXED, REFUSED)) if found else ""


def not_with_free_sizes(rows: Sequence[Row]) -> list[str]:
    """Return the networks exported with fixed sizes alone or not at all, with the reasons."""
    left = [row for row in rows if row["outcome"] == "ok" and not row.get("onnx")]
    earlier = "whose rows are of an earlier version or of a run without it"
    waiting = [f"ONNX is not tried yet of {len(left)} networks, {earlier}.", ""] if left else []
    told = [row for row in rows if row.get("onnx") in (FIXED, REFUSED, LATE)]
    return waiting + section("ONNX with fixed sizes, refused, or not in time", told, "onnx_reason", "onnx")


def section(title: str, rows: Sequence[Row], field: str, ends: str = "outcome") -> list[str]:
    """Return a list of networks with a field of their rows.

    Args:
        title: Title of the section.
        rows: Rows of the networks.
        field: Field to show.
        ends: Field of the outcome.
    """
    if not rows:
        return []
    told = [f"- {row['name']} ({row['suite']}, {row[ends]}): {_short(row[field])}" for row in rows]
    return [f"## {title}", "", *told, ""]


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def names(rows: Sequence[Row]) -> str:
    """Return the names of the successful networks."""
    return ", ".join(row["name"] for row in rows if row["outcome"] == "ok")


def installed() -> dict[str, str]:
    """Return the versions that rows depend on."""
    found = versions()
    for name in FURTHER:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


@dataclass(frozen=True)
class Page:
    """Page of a dimension, rendered from the record of rows alone.

    Attributes:
        name: Name of the files in docs/results.
        kind: Dimension.
        title: Heading.
        about: Paragraph on what is measured.
        columns: Columns of the table of suites behind the outcomes.
        align: Alignment of all columns.
        cells: Function from the rows of a suite to the cells of these columns.
        nothing: Words for networks without anything to prune.
        others: Name of the further rows of the record; empty: none.
        outside: Whether networks outside the named families have a line.
        before: Function from rows and further rows to lines before the section of networks with another end than ok.
        between: Function from rows to lines after this section.
        behind: Function from further rows to lines before the list of networks.
    """

    name: str
    kind: str
    title: str
    about: str
    columns: tuple[str, ...]
    align: str
    cells: Callable[[Sequence[Row]], tuple[object, ...]]
    nothing: str
    others: str = ""
    outside: bool = False
    before: Callable[[Sequence[Row], Sequence[Row]], list[str]] = lambda rows, others: []
    between: Callable[[Sequence[Row]], list[str]] = lambda rows: []
    behind: Callable[[Sequence[Row]], list[str]] = lambda others: []

    def markdown(self, record: Mapping[str, Any]) -> str:
        """Render the page of a record."""
        rows, missing, others = record["rows"], record["missing"], record.get(self.others, [])
        suites = [suite for suite in SUITES if any(row["suite"] == suite for row in rows)]
        of = {suite: [row for row in rows if row["suite"] == suite] for suite in suites}
        beside = {"all": rows} if len(suites) > 1 else {}
        unnamed = [row for row in rows if not row.get("named")]
        if self.outside and 0 < len(unnamed) < len(rows):
            beside["outside the named families"] = unnamed
        header = ("suite", "networks", self.nothing.partition(" to ")[0].lower(), "ok")
        header += ("of the others (95%)", "refused", "failed", "dead, over, slow", *self.columns)
        lines = [
            f"# {self.title}",
            "",
            f"`python -m benchmarks.zoo.zoo --kind {self.kind}`",
            "",
            f"{self.about} {EXPORTED}",
            "",
            table(header, [(name, *self._line(own)) for name, own in (of | beside).items()], self.align),
            "",
            *(f"Not measured: {reason}" for reason in missing.values()),
            *([""] if missing else []),
            *not_tried(rows),
            *rebuilt(rows),
            *self.before(rows, others),
            *section("Not ok", [row for row in rows if row["outcome"] in NOT_OK], "reason"),
            *section(self.nothing, [row for row in rows if row["outcome"] == "nothing"], "reason"),
            *self.between(rows),
            *not_with_free_sizes(rows),
            *self.behind(others),
            "## Ok",
            "",
            *(f"- {suite}: {names(own)}" for suite, own in of.items()),
            "",
            f"Versions: {', '.join(f'{name} {number}' for name, number in record['versions'].items())}.",
        ]
        return "\n".join(lines) + "\n"

    def _line(self, rows: Sequence[Row]) -> tuple[object, ...]:
        count = counted(rows)
        others = len(rows) - count["nothing"]
        ends = (count["ok"], share(count["ok"], others), count["refused"], count["failed"], silent(count))
        return (len(rows), count["nothing"], *ends, *self.cells(rows))
