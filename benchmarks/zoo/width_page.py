"""Pages of the zoo in width and in both dimensions: successes of each suite, and all other outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from benchmarks.zoo.page import SILENT, Page, exports, section
from benchmarks.zoo.trial import SEED, SLOW, Row
from benchmarks.zoo.width_trial import ASKED, MISS

NAMED = 5  # slowest networks to name
ABOUT = (
    f"Random weights, seed {SEED}, one thread. Each network is planned at {ASKED:.0%} of its MACs with "
    "`{call}(model, Budget(macs=0.3), batches=...)`, pruned, trained for a step, saved, and loaded in "
    "another process. Ok: all of that works, the share that is gone is within "
    f"{100 * MISS:.0f} points of the one asked for (or a warning names both), and the loaded network gives "
    "the same bits. Nothing: there is nothing to prune. Refused: a plan is not made, and the error says why. "
    f"Where less than {ASKED:.0%} can go, as the refusal says, half of what can go is asked for instead; these "
    f"networks are named below. {SILENT} What can be pruned is all networks but those with nothing to prune. "
    "Removed: the share of the MACs, least to most of those that are ok; s: seconds per network by the clock, "
    "the median; planning: the seconds of processor time of `{call}` alone, the median."
)


def _cells(rows: Sequence[Row]) -> tuple[object, ...]:
    removed = [row["removed"] for row in rows if row["outcome"] == "ok"]
    spread = f"{min(removed):.1%} to {max(removed):.1%}" if removed else ""
    planning = [row["planning_seconds"] for row in rows if row.get("planning_seconds") is not None]
    seconds = f"{median(row['seconds'] for row in rows):.1f}"
    return spread, seconds, f"{median(planning):.1f}" if planning else "", exports(rows)


def _between(rows: Sequence[Row]) -> list[str]:
    warned = [row for row in rows if row["outcome"] == "ok" and "warned" in row]
    less = section(f"Less than {ASKED:.0%} can go", [row for row in rows if "less" in row], "less")
    return less + section("Another share than asked for, with a warning", warned, "warned")


def _planning(rows: Sequence[Row], others: Sequence[Row]) -> list[str]:
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


def _page(name: str, kind: str, call: str, title: str, networks: str = "") -> Page:
    return Page(
        name=name,
        kind=kind,
        title=f"{title} with default arguments: a zoo of networks",
        about=networks + ABOUT.replace("{call}", call),
        columns=("removed", "s", "planning", "ONNX"),
        align="lrrrlrrrrrrr",
        cells=_cells,
        nothing="Nothing to prune",
        before=_planning,
        between=_between,
    )


PAGE = _page("zoo", "width", "plan_width", "Pruning in width")
SAMPLE = "Networks drawn at random (`--suite transformers plain --sample 40`). "
JOINT = _page("zoo_joint", "joint", "plan_pruning", "Pruning in depth and width", SAMPLE)
