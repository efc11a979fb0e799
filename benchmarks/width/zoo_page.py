"""The page of the zoo: how many of each suite end well, and what became of the rest."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from statistics import median

from benchmarks.width.zoo_networks.suites import SUITES
from benchmarks.width.zoo_trial import ASKED, MISS, SEED, Row
from prunerecover.cost.environment import versions
from prunerecover.cost.statistics import wilson_interval
from prunerecover.display.markdown import table

FURTHER = ("torchvision", "ultralytics")
HEADER = ("suite", "networks", "nothing to prune", "ok", "of the others (95%)", "refused", "failed", "removed", "s")
ALIGN = "lrrrlrrrr"
OUTCOMES = ("ok", "nothing", "refused", "failed")
LONGEST = 400  # characters of a reason


def markdown(rows: Sequence[Row], missing: dict[str, str]) -> str:
    """Render the rows; `missing` says why suites are left out."""
    suites = [suite for suite in SUITES if any(row["suite"] == suite for row in rows)]
    lines = [_line(suite, [row for row in rows if row["suite"] == suite]) for suite in suites]
    total = [_line("all", rows)] if len(suites) > 1 else []
    return "\n".join(
        [
            "# Pruning in width with default arguments: a zoo of networks",
            "",
            "`python -m benchmarks.width.zoo`",
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
            *_rebuilt(rows),
            *_section("Not ok", [row for row in rows if row["outcome"] in ("refused", "failed")], "reason"),
            *_section("Nothing to prune", [row for row in rows if row["outcome"] == "nothing"], "reason"),
            *_section("Another share than asked for, with a warning", _warned(rows), "warned"),
            "## Ok",
            "",
            *(f"- {suite}: {_names([r for r in rows if r['suite'] == suite])}" for suite in suites),
            "",
            f"Versions: {', '.join(f'{name} {number}' for name, number in _installed().items())}.",
        ]
    )


def _line(suite: str, rows: Sequence[Row]) -> tuple[object, ...]:
    count = {outcome: sum(row["outcome"] == outcome for row in rows) for outcome in OUTCOMES}
    others = len(rows) - count["nothing"]
    removed = [row["removed"] for row in rows if row["outcome"] == "ok"]
    spread = f"{min(removed):.1%} to {max(removed):.1%}" if removed else ""
    seconds = f"{median(row['seconds'] for row in rows):.1f}"
    return (
        *(suite, len(rows), count["nothing"], count["ok"], _share(count["ok"], others)),
        *(count["refused"], count["failed"], spread, seconds),
    )


def _share(ok: int, others: int) -> str:
    """Return a share in percent with Wilson's interval."""
    if not others:
        return ""
    found = wilson_interval(ok, others)
    return f"{ok} of {others}: {found.value:.1%} ({100 * found.low:.1f} to {100 * found.high:.1f})"


def _rebuilt(rows: Sequence[Row]) -> list[str]:
    """Say which networks of libraries that plans can name were made again without the dense one."""
    own = [row for row in rows if row["suite"] in ("timm", "transformers") and "rebuilt" in row]
    others = [row["name"] for row in own if not row["rebuilt"]]
    told = f", all but {', '.join(others)}" if others else ""
    made = f"{len(own) - len(others)} of {len(own)} of timm and transformers"
    return [f"Loaded from the saved folder alone, without a dense network: {made}{told}.", ""] if own else []


def _warned(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["outcome"] == "ok" and "warned" in row]


def _section(title: str, rows: Sequence[Row], field: str) -> list[str]:
    """Return a list of networks with what their rows say."""
    if not rows:
        return []
    told = [f"- {row['name']} ({row['suite']}, {row['outcome']}): {_short(row[field])}" for row in rows]
    return [f"## {title}", "", *told, ""]


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def _names(rows: Sequence[Row]) -> str:
    return ", ".join(row["name"] for row in rows if row["outcome"] == "ok")


def _installed() -> dict[str, str]:
    """Return the versions that the rows depend on."""
    found = versions()
    for name in FURTHER:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
