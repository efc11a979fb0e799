"""The page of the benchmark of one budget and one argument: a table per network, cost and budget."""

from __future__ import annotations

from typing import Any

from benchmarks.data.real import ahead_by, made_by, unpacked
from prunerecover.display.markdown import table

Row = dict[str, Any]
OURS = ("DepthPrune default", "Prune (joint)")
HEAD = (
    *("method", "stage", "MACs share", "latency share", "top-1 (95%)", "DepthPrune ahead by", "Prune ahead by"),
    *("in depth", "passes", "planning, min"),
)


def markdown(rows: list[Row], commands: list[str]) -> str:
    """Render the rows, by network, cost and budget."""
    lines = [
        "# One budget, one argument: depth, width and both",
        "",
        *made_by(commands),
        "Each callback with a budget and its defaults, in one short epoch with distillation. Passes: images through "
        "all blocks while planning, timed ones included, per calibration image. In depth: of Prune's budget. Ahead by: "
        "top-1 points on the same images, paired, with their 95% interval. Splits by counts may miss the share: "
        "BoundaryDPT's at 33% were picked for the latency, and take out less of the MACs. Latency is of one thread, "
        "by what it computes; of rows by MACs, that of networks without as many units of each kind, drawn at random. "
        "The epoch is at one learning rate for all methods: [best rates](best_rates.md) says what was run at the best "
        "of three for each. "
        f"Rows by MACs were planned, fitted and scored on {_devices(rows)}, those by latency on a processor.",
    ]
    for dense in (row for row in rows if row["method"] == "dense"):
        lines += ["", f"## {dense['model']}", "", f"Dense: {dense['top1']:.2f}."]
        own = [row for row in rows if row["model"] == dense["model"] and row["cost"]]
        for cost, budget in sorted({(row["cost"], row["budget"]) for row in own}):
            chosen = [row for row in own if (row["cost"], row["budget"]) == (cost, budget)]
            chosen.sort(key=lambda row: (row["stage"], -row["top1"]))
            lines += ["", f"### {budget:.0%} of the {cost}", "", table(HEAD, [_cells(row, chosen) for row in chosen])]
    return "\n".join(lines)


def _devices(rows: list[Row]) -> str:
    return " and ".join(sorted({row["device"] for row in rows if row["cost"] == "macs"}))


def _ahead(ours: str, row: Row, rows: list[Row]) -> str:
    """By how many points a method of ours is ahead of a row at the same stage, on the same images."""
    same = [other for other in rows if other["method"] == ours and other["stage"] == row["stage"]]
    if not same or row["method"] == ours:
        return ""
    return ahead_by(unpacked(same[0]["hits"], row["n"]), unpacked(row["hits"], row["n"]))


def _cells(row: Row, rows: list[Row]) -> tuple[str, ...]:
    return (
        row["method"],
        row["stage"],
        f"{row['macs_share']:.3f}",
        "" if row["latency_share"] is None else f"{row['latency_share']:.3f}",
        f"{row['top1']:.2f} ({row['ci_low']:.2f}-{row['ci_high']:.2f})",
        *(_ahead(ours, row, rows) for ours in OURS),
        "" if row.get("depth_share") is None else f"{row['depth_share']:.1%}",
        f"{row['passes']:.1f}",
        f"{row['planning_seconds'] / 60:.1f}",
    )
