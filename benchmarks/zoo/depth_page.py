"""Page of the zoo in depth: successes of each suite, all other outcomes, and random sequences."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from benchmarks.zoo.depth_trial import REMOVED
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
from benchmarks.zoo.trial import SEED, Row
from prunerecover.display.markdown import table
from prunerecover.plan.kinds import DEPTH_KINDS

HEADER = (
    "suite",
    "networks",
    "no unit",
    "ok",
    "of the others (95%)",
    "refused",
    "failed",
    "dead, over, slow",
    *DEPTH_KINDS,
    "gone",
    "s",
    "ONNX",
)
ALIGN = "lrrrlrrr" + "r" * (len(DEPTH_KINDS) + 3)
SEQUENCES = ("architecture", "sequences", "ok", "units taken out", "s")


def markdown(rows: Sequence[Row], missing: dict[str, str], in_turn: Sequence[Row]) -> str:
    """Render the rows; `missing` says why suites are left out, `in_turn` are the rows of sequences."""
    suites = [suite for suite in SUITES if any(row["suite"] == suite for row in rows)]
    lines = [_line(suite, [row for row in rows if row["suite"] == suite]) for suite in suites]
    total = [_line("all", rows)] if len(suites) > 1 else []
    others = [row for row in rows if not row.get("named")]
    total += [_line("outside the named families", others)] if 0 < len(others) < len(rows) else []
    return "\n".join(
        [
            "# Pruning in depth: a zoo of networks",
            "",
            "`python -m benchmarks.zoo.zoo --kind depth`",
            "",
            f"Random weights, seed {SEED}, one thread. Of each network `find_units` lists the units; {REMOVED} of them "
            "are drawn, none inside another, and as many of their kinds are removed with "
            '`plan_depth(model, remove={kind: n, ...}, batches=..., importance="random")`, fewer where no more can go '
            "together, one of another kind where none can. What is left is trained for a step, saved, and loaded in "
            "another process. Ok: all of that works, the parameters are as many as the plan says, they or the MACs are "
            "fewer than before (but where activations alone go), the MACs are fewer or as many as the plan says, and "
            "the loaded network gives the same bits. No unit: nothing can be removed, and the error says why. Refused: "
            "a plan is not made, and the error says why. What can be pruned is all networks but those without a unit. "
            f"{SILENT} {', '.join(DEPTH_KINDS)}: units found; activations are listed in the named families alone. "
            f"Gone: the median share of the parameters; s: seconds per network, the median. {EXPORTED}",
            "",
            table(HEADER, [*lines, *total], ALIGN),
            "",
            *(f"Not measured: {reason}" for reason in missing.values()),
            *([""] if missing else []),
            *not_tried(rows),
            *rebuilt(rows),
            *_fewer(rows),
            *section("Not ok", [row for row in rows if row["outcome"] in NOT_OK], "reason"),
            *section("No unit", [row for row in rows if row["outcome"] == "nothing"], "reason"),
            *not_with_free_sizes(rows),
            *_sequences(in_turn),
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
    gone = [row["saved"][0] for row in rows if row["outcome"] == "ok"]
    return (
        *(suite, len(rows), count["nothing"], count["ok"], share(count["ok"], others)),
        *(count["refused"], count["failed"], silent(count)),
        *(sum(row.get("units", {}).get(kind, 0) for row in rows) for kind in DEPTH_KINDS),
        *(f"{median(gone):.1%}" if gone else "", f"{median(row['seconds'] for row in rows):.1f}", exports(rows)),
    )


def _fewer(rows: Sequence[Row]) -> list[str]:
    """Name the networks with fewer removed units than drawn."""
    found = [(row, sum(map(len, row["removed"].values()))) for row in rows if "removed" in row]
    told = [f"{row['name']} ({count} of {row['asked']})" for row, count in found if count < row["asked"]]
    return (
        [f"Fewer units than were drawn, because none of those that are left can go with them: {', '.join(told)}.", ""]
        if told
        else []
    )


def _sequences(rows: Sequence[Row]) -> list[str]:
    """Return the outcomes of sequential removals."""
    if not rows:
        return []
    lines = [(row["name"], row["n"], row["ok"], row["removed"], f"{row['seconds']:.0f}") for row in rows]
    total = tuple(sum(row[count] for row in rows) for count in ("n", "ok", "removed"))
    failures = [f"- {row['name']}: {row['reason']}" for row in rows if "reason" in row]
    return [
        "## Random sequences",
        "",
        "`python -m benchmarks.zoo.zoo --kind depth --sequences N`",
        "",
        f"{share(total[1], total[0])} sequences end well, on {len(rows)} architectures: up to five units are drawn "
        "that can go together, and taken out one after another; what is left runs, learns, has as many parameters as "
        "was predicted (where layers alone go), and comes back from a plan file with the same bits.",
        "",
        table(SEQUENCES, [*lines, ("all", *total, f"{sum(row['seconds'] for row in rows):.0f}")], "lrrrr"),
        "",
        *(["The first failure of each:", "", *failures, ""] if failures else []),
    ]
