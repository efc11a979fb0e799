"""The page of the zoo in width: how many of each suite end well, and what became of the rest."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from benchmarks.zoo.networks.suites import SUITES
from benchmarks.zoo.page import counted, installed, names, rebuilt, section, share
from benchmarks.zoo.trial import SEED, Row
from benchmarks.zoo.width_trial import ASKED, MISS
from prunerecover.display.markdown import table

HEADER = ("suite", "networks", "nothing to prune", "ok", "of the others (95%)", "refused", "failed", "removed", "s")
ALIGN = "lrrrlrrrr"


def markdown(rows: Sequence[Row], missing: dict[str, str]) -> str:
    """Render the rows; `missing` says why suites are left out."""
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
            "the same bits. Refused: a plan is not made, and the error says why. Removed: the share of the MACs, least "
            "to most of those that are ok; s: seconds per network, the median.",
            "",
            table(HEADER, [*lines, *total], ALIGN),
            "",
            *(f"Not measured: {reason}" for reason in missing.values()),
            *([""] if missing else []),
            *rebuilt(rows),
            *section("Not ok", [row for row in rows if row["outcome"] in ("refused", "failed")], "reason"),
            *section("Nothing to prune", [row for row in rows if row["outcome"] == "nothing"], "reason"),
            *section("Another share than asked for, with a warning", _warned(rows), "warned"),
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
    return (
        *(suite, len(rows), count["nothing"], count["ok"], share(count["ok"], others)),
        *(count["refused"], count["failed"], spread, seconds),
    )


def _warned(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["outcome"] == "ok" and "warned" in row]
