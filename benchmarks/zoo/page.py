"""Pages of the zoo: a table of suites, and lists of networks with reasons, from the record of rows alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from statistics import median
from typing import Any

from benchmarks.zoo.depth_trial import REMOVED
from benchmarks.zoo.networks.suites import SUITES
from benchmarks.zoo.trial import FIXED, FREE, LATE, REFUSED, SEED, SLOW, Row
from benchmarks.zoo.width_trial import ASKED, MISS
from prunerecover.cost.statistics import wilson_interval
from prunerecover.display.markdown import table
from prunerecover.plan.kinds import DEPTH_KINDS

SILENT = (
    "Dead, over and slow: a parameter that had a gradient before the surgery has none after it; more goes than was "
    f"asked for and nothing says so; finding and planning take over {SLOW} s of processor time."
)
EXPORTED = (
    "ONNX: how many of those that were saved are exported by `export(model, path, batch)` and give the same outputs in "
    "onnxruntime, with free sizes, with fixed ones (`dynamic=False`), and refused."
)
EARLIER = "whose rows are of an earlier version"
LONGEST = 800  # characters of a reason
NAMED = 5  # slowest networks to name
Rows = Sequence[Row]


@dataclass(frozen=True)
class Page:
    """Page of a dimension.

    Attributes:
        name: Name of the files in docs/results.
        kind: Dimension.
        title: Heading.
        about: Paragraph on what is measured.
        nothing: Words for networks without anything to prune.
        columns: Functions from the rows of a suite to a cell, by head, for columns behind the outcomes.
        remark: Function from rows to a line above the lists of networks; empty: none.
    """

    name: str
    kind: str
    title: str
    about: str
    nothing: str
    columns: Mapping[str, Callable[[Rows], object]]
    remark: Callable[[Rows], str]

    def markdown(self, record: Mapping[str, Any]) -> str:
        """Render the page of a record."""
        rows = record["rows"]
        warned = [row for row in rows if row["outcome"] == "ok" and "warned" in row]
        converted = [row for row in rows if row.get("onnx") in (FIXED, REFUSED, LATE)]
        parts = [
            f"# {self.title}",
            f"`python -m benchmarks.zoo.zoo --kind {self.kind}`",
            f"{self.about} {EXPORTED}",
            self._suites(rows),
            "\n".join(f"Not measured: {reason}" for reason in record["missing"].values()),
            _not_tried(rows),
            _rebuilt(rows),
            self.remark(rows),
            _listed("Not ok", [row for row in rows if row["outcome"] not in ("ok", "nothing")], "reason"),
            _listed(self.nothing, [row for row in rows if row["outcome"] == "nothing"], "reason"),
            _listed(f"Less than {ASKED:.0%} can go", [row for row in rows if "less" in row], "less"),
            _listed("Another share than asked for, with a warning", warned, "warned"),
            _not_exported(rows),
            _listed("ONNX with fixed sizes, refused, or not in time", converted, "onnx_reason", "onnx"),
            _sequences(record.get("sequences", [])),
            "## Ok",
            "\n".join(f"- {suite}: {_ok(own)}" for suite, own in _by_suite(rows).items()),
            f"Versions: {', '.join(f'{name} {number}' for name, number in record['versions'].items())}.",
        ]
        return "\n\n".join(filter(None, parts)) + "\n"

    def _suites(self, rows: Rows) -> str:
        """Render the outcomes of each suite, of all, and of networks outside the named families."""
        lines, unnamed = _by_suite(rows), [row for row in rows if not row.get("named")]
        if len(lines) > 1:
            lines["all"] = rows
        if 0 < len(unnamed) < len(rows):
            lines["outside the named families"] = unnamed
        columns: dict[str, Callable[[Rows], object]] = {
            "networks": len,
            self.nothing.partition(" to ")[0].lower(): partial(_count, "nothing"),
            "ok": partial(_count, "ok"),
            "of the others (95%)": lambda own: share(_count("ok", own), len(own) - _count("nothing", own)),
            "refused": partial(_count, "refused"),
            "failed": partial(_count, "failed"),
            "dead, over, slow": lambda own: ", ".join(str(_count(end, own)) for end in ("dead", "over", "slow")),
            **self.columns,
            "ONNX": exports,
        }
        cells = [(name, *(cell(own) for cell in columns.values())) for name, own in lines.items()]
        return table(("suite", *columns), cells, "lrrrl" + "r" * (len(columns) - 4))


def _by_suite(rows: Rows) -> dict[str, Rows]:
    found = {suite: [row for row in rows if row["suite"] == suite] for suite in SUITES}
    return {suite: own for suite, own in found.items() if own}


def _count(outcome: str, rows: Rows) -> int:
    return sum(row["outcome"] == outcome for row in rows)


def _ok(rows: Rows) -> str:
    return ", ".join(row["name"] for row in rows if row["outcome"] == "ok")


def share(ok: int, others: int) -> str:
    """Return a share in percent with Wilson's interval."""
    if not others:
        return ""
    found = wilson_interval(ok, others)
    return f"{ok} of {others}: {found.value:.1%} ({100 * found.low:.1f} to {100 * found.high:.1f})"


def exports(rows: Rows) -> str:
    """Return the numbers of exports with free sizes, with fixed sizes, and refused; empty if none was tried.

    >>> exports([{"onnx": "free sizes"}, {"onnx": "free sizes"}, {"onnx": "refused"}, {"onnx": None}])
    '2, 0, 1'
    """
    found = [row["onnx"] for row in rows if row.get("onnx")]
    return ", ".join(str(found.count(how)) for how in (FREE, FIXED, REFUSED)) if found else ""


def _listed(title: str, rows: Rows, field: str, ends: str = "outcome") -> str:
    """Return a list of networks with a field of their rows, and the field of the outcome."""
    shown = [(row, " ".join(row[field].split())) for row in rows]
    lines = [
        f"- {row['name']} ({row['suite']}, {row[ends]}): {text[:LONGEST]}{'...' if len(text) > LONGEST else ''}"
        for row, text in shown
    ]
    return "\n".join([f"## {title}", "", *lines]) if lines else ""


def _not_tried(rows: Rows) -> str:
    """Return a line on networks whose silent failures are unknown."""
    left = sum("dead" not in row for row in rows)
    return f"Dead parameters are not tried yet of {left} networks, {EARLIER}." if left else ""


def _not_exported(rows: Rows) -> str:
    """Return a line on networks whose export is unknown."""
    left = sum(row["outcome"] == "ok" and not row.get("onnx") for row in rows)
    return f"ONNX is not tried yet of {left} networks, {EARLIER} or of a run without it." if left else ""


def _rebuilt(rows: Rows) -> str:
    """Return a line on the networks of timm and transformers that were rebuilt without the dense network."""
    own = [row for row in rows if row["suite"] in ("timm", "transformers") and "rebuilt" in row]
    others = [row["name"] for row in own if not row["rebuilt"]]
    told = f", all but {', '.join(others)}" if others else ""
    made = f"{len(own) - len(others)} of {len(own)} of timm and transformers"
    return f"Loaded from the saved folder alone, without a dense network: {made}{told}." if own else ""


def _sequences(rows: Rows) -> str:
    """Return the outcomes of sequential removals."""
    if not rows:
        return ""
    lines = [(row["name"], row["n"], row["ok"], row["removed"], f"{row['seconds']:.0f}") for row in rows]
    total = tuple(sum(row[count] for row in rows) for count in ("n", "ok", "removed"))
    lines.append(("all", *total, f"{sum(row['seconds'] for row in rows):.0f}"))
    failures = [f"- {row['name']}: {row['reason']}" for row in rows if "reason" in row]
    parts = [
        "## Random sequences",
        "`python -m benchmarks.zoo.zoo --kind depth --sequences N`",
        f"{share(total[1], total[0])} sequences end well, on {len(rows)} architectures: up to five units are drawn "
        "that can go together, and taken out one after another; what is left runs, learns, has as many parameters as "
        "was predicted (where layers alone go), and comes back from a plan file with the same bits.",
        table(("architecture", "sequences", "ok", "units taken out", "s"), lines, "lrrrr"),
        *(["The first failure of each:", "\n".join(failures)] if failures else []),
    ]
    return "\n\n".join(parts)


def _spread(rows: Rows) -> str:
    removed = [row["removed"] for row in rows if row["outcome"] == "ok"]
    return f"{min(removed):.1%} to {max(removed):.1%}" if removed else ""


def _gone(rows: Rows) -> str:
    gone = [row["saved"][0] for row in rows if row["outcome"] == "ok"]
    return f"{median(gone):.1%}" if gone else ""


def _median(name: str, rows: Rows) -> str:
    seconds = [row[name] for row in rows if row.get(name) is not None]
    return f"{median(seconds):.1f}" if seconds else ""


def _units(kind: str, rows: Rows) -> int:
    return sum(row.get("units", {}).get(kind, 0) for row in rows)


def _fewer(rows: Rows) -> str:
    """Name the networks with fewer removed units than drawn."""
    found = [(row, sum(map(len, row["removed"].values()))) for row in rows if "removed" in row]
    named = ", ".join(f"{row['name']} ({count} of {row['asked']})" for row, count in found if count < row["asked"])
    why = "because none of those that are left can go with them"
    return f"Fewer units than were drawn, {why}: {named}." if named else ""


def _planning(rows: Rows) -> str:
    """Return a line on planning times; a lost process counts as too long."""
    timed = [(row["planning_seconds"], row["name"]) for row in rows if row["planning_seconds"] is not None]
    if not timed:
        return ""
    seconds = [each for each, _ in timed]
    quick = sum(each < SLOW for each in seconds)
    longest = ", ".join(f"{name} {each:.1f}" for each, name in sorted(timed, key=itemgetter(0), reverse=True)[:NAMED])
    return (
        f"Planning takes less than {SLOW} s of processor time on {quick} of {len(rows)} networks, "
        f"{median(seconds):.1f} s by the median; longest on {longest}."
    )


DEPTH = Page(
    name="zoo_depth",
    kind="depth",
    title="Pruning in depth: a zoo of networks",
    about=f"Random weights, seed {SEED}, one thread. Of each network `find_units` lists the units; {REMOVED} of them "
    "are drawn, none inside another, and as many of their kinds are removed with "
    '`plan_depth(model, remove={kind: n, ...}, batches=..., importance="random")`, fewer where no more can go '
    "together, one of another kind where none can. What is left is trained for a step, saved, and loaded in "
    "another process. Ok: all of that works, the parameters are as many as the plan says, they or the MACs are "
    "fewer than before (but where activations alone go), the MACs are fewer or as many as the plan says, and "
    "the loaded network gives the same bits. No unit: nothing can be removed, and the error says why. Refused: "
    "a plan is not made, and the error says why. What can be pruned is all networks but those without a unit. "
    f"{SILENT} {', '.join(DEPTH_KINDS)}: units found; activations are listed in the named families alone. "
    f"Gone: the median share of the parameters; s: seconds per network, the median.",
    nothing="No unit",
    columns={**{kind: partial(_units, kind) for kind in DEPTH_KINDS}, "gone": _gone, "s": partial(_median, "seconds")},
    remark=_fewer,
)
WIDTH = Page(
    name="zoo",
    kind="width",
    title="Pruning in width with default arguments: a zoo of networks",
    about=f"Random weights, seed {SEED}, one thread. Each network is planned at {ASKED:.0%} of its MACs with "
    "`plan_width(model, Budget(macs=0.3), batches=...)`, pruned, trained for a step, saved, and loaded in "
    "another process. Ok: all of that works, the share that is gone is within "
    f"{100 * MISS:.0f} points of the one asked for (or a warning names both), and the loaded network gives "
    "the same bits. Nothing: there is nothing to prune. Refused: a plan is not made, and the error says why. "
    f"Where less than {ASKED:.0%} can go, as the refusal says, half of what can go is asked for instead; these "
    f"networks are named below. {SILENT} What can be pruned is all networks but those with nothing to prune. "
    "Removed: the share of the MACs, least to most of those that are ok; s: seconds per network by the clock, "
    "the median; planning: the seconds of processor time of `plan_width` alone, the median.",
    nothing="Nothing to prune",
    columns={
        "removed": _spread,
        "s": partial(_median, "seconds"),
        "planning": partial(_median, "planning_seconds"),
    },
    remark=_planning,
)
JOINT = replace(
    WIDTH,
    name="zoo_joint",
    kind="joint",
    title="Pruning in depth and width with default arguments: a zoo of networks",
    about="Networks drawn at random (`--suite transformers plain --sample 40`). "
    + WIDTH.about.replace("plan_width", "plan_pruning"),
)
