"""How divergences before any training and accuracies after a short recovery are related: real DeiT-Tiny, nine splits.

    PRUNERECOVER_DATA=... python -m benchmarks.boundary.boundary_divergences

Recoveries are those of `boundary_map`: every split of eight layers, two seeds, one epoch of 2,000 images. The
divergence of a split is that of the network as it was planned, on held-out calibration samples; nothing is trained
here. How far accuracies are from a straight line in the divergence is what `map_synthetic` takes the scatter of its
made-up divergences from. The map then picks from three to five of the runs, with the divergences and without them.
Resumable; about a minute a split on one core.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from rich.progress import track

from benchmarks.boundary.boundary_map import NAME as MAP
from benchmarks.boundary.boundary_map import SEEDS, SPLITS, Table, of, picked, regret
from benchmarks.boundary.boundary_methods import default_planner
from benchmarks.data.real import commands_so_far, made_by, parser, stored, write
from prunerecover.display.markdown import table
from prunerecover.model.evaluation import evaluating, ordinary_arithmetic

NAME = "boundary_divergences"
RUNS = (3, 4, 5)


def main() -> None:
    """Measure the divergences that are missing, and fit the line."""
    parser(__doc__).parse_args()
    rows = stored(NAME)
    runs: Table = {((row["attention"], row["activation"]), row["seed"]): row for row in stored(MAP)}
    measured = {(row["attention"], row["activation"]) for row in rows}
    for split in track([split for split in SPLITS if split not in measured], "measuring divergences"):
        top1 = 100 * float(np.mean([of(runs, split, seed) for seed in SEEDS]))
        named = dict(zip(("attention", "activation"), split, strict=True))
        rows.append({**named, "divergence": divergence(runs[split, SEEDS[0]]["removed"]), "top1": top1})
        save(rows, runs)
    save(rows, runs)


def divergence(removed: dict[str, list[str]]) -> float:
    """Return the output divergence without some units, each with what fits best in its place."""
    planner = default_planner()
    gone = {name for names in removed.values() for name in names}
    with ordinary_arithmetic(), evaluating(planner.model):
        return planner.calibrator.choose([unit for unit in planner.units if unit.name in gone])[-1].divergence


def relation(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the line of least squares through accuracies over divergences, and the scatter around it.

    Returns:
        `dense`, where it meets divergence 0, `points` lost per nat, their correlation, `scatter` in points, and
        `relative_scatter`: that of what is lost, from `dense`, as a share of it.
    """
    found, top1 = (np.array([row[key] for row in rows]) for key in ("divergence", "top1"))
    slope, dense = np.polyfit(found, top1, 1)
    off, freedom = top1 - dense - slope * found, len(rows) - 2
    return {
        "dense": float(dense),
        "points": float(-slope),
        "correlation": float(np.corrcoef(found, top1)[0, 1]),
        "scatter": float(np.sqrt(off @ off / freedom)),
        "relative_scatter": float(np.sqrt(np.sum((off / (slope * found)) ** 2) / freedom)),
    }


def picks(rows: list[dict[str, Any]], runs: Table) -> list[dict[str, Any]]:
    """Return what the map picks from each seed's runs, with divergences and without, and the mean regret."""
    divergences = {(row["attention"], row["activation"]): row["divergence"] for row in rows}
    found = []
    for guided in (True, False):
        for count in RUNS:
            splits = [picked(runs, seed, count, divergences if guided else None)[0] for seed in SEEDS]
            lost = regret(runs, splits)
            found.append(
                {"guided": guided, "runs": count, "picks": splits}
                | {"regret": lost.value, "ci_low": lost.low, "ci_high": lost.high}
            )
    return found


def save(rows: list[dict[str, Any]], runs: Table) -> None:
    """Write JSON and Markdown, with the line and the picks once all splits are there."""
    commands = commands_so_far(NAME)
    complete = len(rows) == len(SPLITS)
    line, found = (relation(rows), picks(rows, runs)) if complete else ({}, [])
    result = {"commands": commands, "rows": rows, "relation": line, "picks": found}
    write(NAME, result, markdown(rows, line, found, commands))


def markdown(
    rows: list[dict[str, Any]], line: dict[str, float], found: list[dict[str, Any]], commands: list[str]
) -> str:
    """Render the splits, the line and the picks."""
    cells = [
        (row["attention"], row["activation"], f"{row['divergence']:.3f}", f"{row['top1']:.2f}")
        for row in sorted(rows, key=lambda row: row["attention"])
    ]
    lines = [
        "# Divergence before training and accuracy after it: DeiT-Tiny, 8 layers removed",
        "",
        *made_by(commands),
        "Top-1: of 5,000 validation images after one epoch of 2,000 training images, the mean of two seeds "
        "([the runs](boundary_map.md)). Divergence: of the outputs as planned, on held-out calibration samples.",
        "",
        table(("attentions removed", "activations removed", "divergence", "top-1 recovered"), cells),
    ]
    if line:
        lines += [
            "",
            f"Line: {line['dense']:.1f} - {line['points']:.1f} x divergence; correlation {line['correlation']:.3f}; "
            f"scatter {line['scatter']:.2f} points, {line['relative_scatter']:.1%} of what is lost.",
            "",
            "What the map picks from the runs of either seed, judged on the 5,000 validation images:",
            "",
            table(
                ("runs", "divergences", "picks, by seed", "mean regret (paired 95% interval)"),
                (
                    (
                        row["runs"],
                        "seen" if row["guided"] else "not seen",
                        ", ".join(str(tuple(split)) for split in row["picks"]),
                        f"{row['regret']:.2f} ({row['ci_low']:.2f}-{row['ci_high']:.2f})",
                    )
                    for row in found
                ),
            ),
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
