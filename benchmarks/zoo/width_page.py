"""Page of the zoo in width: successes of each suite, and all other outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from benchmarks.zoo.networks.suites import SUITES
from benchmarks.zoo.page import (
    EXPORTED,
    NOT_OK,
    SILENT,
    counted,
    exports,
    installed,
    names,
    not_tried,
    not_with_free_sizes,
    rebuilt,
    section,
    share,
    silent,
)
from benchmarks.zoo.trial import SEED, SLOW, Row
from benchmarks.zoo.width_trial import ASKED, MISS
from prunerecover.display.markdown import table

HEADER = ("suite", "networks", "nothing", "ok", "of the others (95%)", "refused", "failed", "dead, over, slow")
HEADER += ("removed", "s", "planning", "ONNX")
ALIGN = "lrrrlrrrrrrr"
NAMED = 5  # networks that take longest


def markdown(rows: Sequence[Row], missing: dict[str, str], large: Sequence[Row]) -> str:
    """Render the rows; `missing` says why suites are left out, `large` are the rows of networks without weights."""
    suites = [suite for suite in SUITES if any(row["suite"] == suite for row in rows)]
    lines = [_line(suite, [row for row in rows if row["suite"] == suite]) for suite in suites]
    total = [_line("all", rows)] if len(suites) > 1 else []
    return "\n".join(
        [
            "# Pruning in width with default arguments: a zoo of networks",
            "",
            "`python -m benchmarks.zoo.zoo --kind width`",
            "",
            f"Random weights, seed {SEED}, one thread. Each network is planned at {ASKED:.0%} of its MACs with "
            "`plan_width(model, Budget(macs=0.3), batches=...)`, pruned, trained for a step, saved, and loaded in "
            "another process. Ok: all of that works, the share that is gone is within "
            f"{100 * MISS:.0f} points of the one asked for (or a warning names both), and the loaded network gives "
            "the same bits. Nothing: there is nothing to prune. Refused: a plan is not made, and the error says why. "
            f"Where less than {ASKED:.0%} can go, as the refusal says, half of what can go is asked for instead; these "
            f"networks are named below. {SILENT} What can be pruned is all networks but those with nothing to prune. "
            "Removed: the share of the MACs, least to most of those that are ok; s: seconds per network by the clock, "
            "the median; planning: the seconds of processor time of `plan_width` alone, the median. "
            f"{EXPORTED}",
            "",
            table(HEADER, [*lines, *total], ALIGN),
            "",
            *(f"Not measured: {reason}" for reason in missing.values()),
            *([""] if missing else []),
            *not_tried(rows),
            *rebuilt(rows),
            *_planning(rows),
            *_large(large),
            *section("Not ok", [row for row in rows if row["outcome"] in NOT_OK], "reason"),
            *section("Nothing to prune", [row for row in rows if row["outcome"] == "nothing"], "reason"),
            *section(f"Less than {ASKED:.0%} can go", [row for row in rows if "less" in row], "less"),
            *section("Another share than asked for, with a warning", _warned(rows), "warned"),
            *not_with_free_sizes(rows),
            "## Ok",
            "",
            *(f"- {suite}: {names([r for r in rows if r['suite'] == suite])}" for suite in suites),
            "",
            installed(),
        ]
    )


def _line(suite: str, rows: Sequence[Row]) -> tuple[object, ...]:
    count = counted(rows)
    others = len(rows) - count["nothing"]
    removed = [row["removed"] for row in rows if row["outcome"] == "ok"]
    spread = f"{min(removed):.1%} to {max(removed):.1%}" if removed else ""
    seconds = f"{median(row['seconds'] for row in rows):.1f}"
    planning = [row["planning_seconds"] for row in rows if row.get("planning_seconds") is not None]
    return (
        *(suite, len(rows), count["nothing"], count["ok"], share(count["ok"], others)),
        *(count["refused"], count["failed"], silent(count), spread, seconds),
        *(f"{median(planning):.1f}" if planning else "", exports(rows)),
    )


def _planning(rows: Sequence[Row]) -> list[str]:
    """Return a line on planning times; a lost process counts as too long, and earlier rows have no time."""
    tried = [row for row in rows if "planning_seconds" in row]
    others = [row["seconds"] for row in rows if "planning_seconds" not in row]
    timed = sorted((row for row in tried if row["planning_seconds"] is not None), key=_seconds, reverse=True)
    if not timed:
        return []
    quick = sum(_seconds(row) < SLOW for row in timed)
    longest = ", ".join(f"{row['name']} {_seconds(row):.1f}" for row in timed[:NAMED])
    return [
        f"Planning takes less than {SLOW} s of processor time on {quick} of {len(tried)} networks, "
        f"{median(map(_seconds, timed)):.1f} s by the median; longest on {longest}."
        + (f" Not timed yet: {len(others)}, of which all steps took at most {max(others):.1f} s." if others else ""),
        "",
    ]


def _seconds(row: Row) -> float:
    return float(row["planning_seconds"])


def _large(rows: Sequence[Row]) -> list[str]:
    """Say how long groups of networks without weights take."""
    told = [
        f"{row['name']} ({row['params']:,} parameters), on the meta device: `find_groups` finds "
        f"{' and '.join(f'{count} groups of {kind}s' for kind, count in row['groups'].items())} in "
        f"{row['find_groups_seconds']:.1f} s of processor time (`python -m benchmarks.zoo.zoo --kind width --large`)."
        for row in rows
    ]
    return [*told, ""] if told else []


def _warned(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["outcome"] == "ok" and "warned" in row]
