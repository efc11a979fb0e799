"""Page of the zoo in depth: successes of each suite, all other outcomes, and random sequences."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from benchmarks.zoo.depth_trial import REMOVED
from benchmarks.zoo.page import SILENT, Page, exports, share
from benchmarks.zoo.trial import SEED, Row
from prunerecover.display.markdown import table
from prunerecover.plan.kinds import DEPTH_KINDS

SEQUENCES = ("architecture", "sequences", "ok", "units taken out", "s")
ABOUT = (
    f"Random weights, seed {SEED}, one thread. Of each network `find_units` lists the units; {REMOVED} of them "
    "are drawn, none inside another, and as many of their kinds are removed with "
    '`plan_depth(model, remove={kind: n, ...}, batches=..., importance="random")`, fewer where no more can go '
    "together, one of another kind where none can. What is left is trained for a step, saved, and loaded in "
    "another process. Ok: all of that works, the parameters are as many as the plan says, they or the MACs are "
    "fewer than before (but where activations alone go), the MACs are fewer or as many as the plan says, and "
    "the loaded network gives the same bits. No unit: nothing can be removed, and the error says why. Refused: "
    "a plan is not made, and the error says why. What can be pruned is all networks but those without a unit. "
    f"{SILENT} {', '.join(DEPTH_KINDS)}: units found; activations are listed in the named families alone. "
    f"Gone: the median share of the parameters; s: seconds per network, the median."
)


def _cells(rows: Sequence[Row]) -> tuple[object, ...]:
    gone = [row["saved"][0] for row in rows if row["outcome"] == "ok"]
    units = [sum(row.get("units", {}).get(kind, 0) for row in rows) for kind in DEPTH_KINDS]
    seconds = f"{median(row['seconds'] for row in rows):.1f}"
    return *units, f"{median(gone):.1%}" if gone else "", seconds, exports(rows)


def _fewer(rows: Sequence[Row], in_turn: Sequence[Row]) -> list[str]:
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


PAGE = Page(
    name="zoo_depth",
    kind="depth",
    title="Pruning in depth: a zoo of networks",
    about=ABOUT,
    columns=(*DEPTH_KINDS, "gone", "s", "ONNX"),
    align="lrrrlrrr" + "r" * (len(DEPTH_KINDS) + 3),
    cells=_cells,
    nothing="No unit",
    others="sequences",
    outside=True,
    before=_fewer,
    behind=_sequences,
)
