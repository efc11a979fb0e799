"""The page of the benchmark of learning rates after surgery: tables per network, and a picture of top-1 over steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.data.real import made_by, unpacked
from benchmarks.recovery.schedule_subjects import Subject
from prunerecover.cost.statistics import paired_difference
from prunerecover.display.markdown import table
from prunerecover.display.style import BLUE, ORANGE, VERMILION, add_legend, new_figure

Row = dict[str, Any]
CONSTANT, DEFAULT = "constant", "`RecoverySchedule()`"
CURVES_AT = 0.05
LINES = {CONSTANT: (VERMILION, 1.2), "linear to zero": (ORANGE, 1.2), DEFAULT: (BLUE, 2.2)}
HEAD = ("rate", "schedule", "top-1 (each seed)", "ahead of constant by (95% interval)", "times the rate", "seeds")


def found(rows: list[Row], **where: Any) -> list[Row]:
    """Return the rows with these entries, by seed."""
    return sorted((r for r in rows if all(r[name] == value for name, value in where.items())), key=lambda r: r["seed"])


def markdown(rows: list[Row], subjects: Mapping[str, Subject]) -> str:
    """Render all tables."""
    lines = ["# The learning rate after surgery", "", *made_by(sorted({row["command"] for row in rows}))]
    lines += [
        "Constant: the rate as the optimizer has it, from the surgery to the end. The interval is the paired "
        "bootstrap's over images, of means over the seeds that both have. Times the rate: what the test right after "
        "the surgery chose, of 1, 1/2, 1/4, 1/8 and 1/16.",
    ]
    if found(rows, scored="curve"):
        lines += ["", f"![Top-1 over the steps after the surgery, ResNet-20 at {CURVES_AT:g}](recovery_schedule.png)"]
    for name, subject in subjects.items():
        if of := found(rows, subject=name, scored="test"):
            lines += ["", f"## {subject.title}", "", subject.about, "", table(HEAD, _cells(of))]
    return "\n".join([*lines, "", *_chosen(found(rows, scored="held-out"), subjects)])


def _cells(rows: list[Row]) -> list[tuple[str, ...]]:
    """Return the cells of a network, by rate and schedule."""
    cells = []
    for rate in sorted({row["rate"] for row in rows}):
        alone = {row["seed"]: row for row in found(rows, rate=rate, schedule=CONSTANT)}
        for schedule in dict.fromkeys([CONSTANT, DEFAULT, *sorted({row["schedule"] for row in rows})]):
            own = found(rows, rate=rate, schedule=schedule)
            if own:
                cells.append((f"{rate:g}", schedule, _top1(own), _ahead(own, alone), _shares(own), _seeds(own)))
    return cells


def _top1(rows: list[Row]) -> str:
    each = ", ".join(f"{100 * row['value']:.1f}" for row in rows)
    return f"{100 * np.mean([row['value'] for row in rows]):.1f}" + (f" ({each})" if len(rows) > 1 else "")


def _shares(rows: list[Row]) -> str:
    return ", ".join(f"{share:g}" for row in rows for share in row.get("shares", []))


def _seeds(rows: list[Row]) -> str:
    return ", ".join(str(row["seed"]) for row in rows)


def _ahead(rows: list[Row], alone: Mapping[int, Row]) -> str:
    both = [row for row in rows if row["seed"] in alone and row["schedule"] != CONSTANT]
    if not both:
        return ""
    ours, theirs = (
        np.mean([unpacked(row["hits"], row["n"]) for row in of], axis=0)
        for of in (both, [alone[row["seed"]] for row in both])
    )
    ahead = paired_difference(theirs, ours, seed=0)
    return f"{100 * ahead.value:+.1f} ({100 * ahead.low:+.1f} to {100 * ahead.high:+.1f})"


def _chosen(rows: list[Row], subjects: Mapping[str, Subject]) -> list[str]:
    """Render what the default was chosen by, on training images."""
    lines = ["## What the default was chosen by", ""]
    lines += ["Top-1 in percent on training images that were left out of plans and trainings; seed 100."]
    for name, subject in subjects.items():
        own = found(rows, subject=name)
        rates = sorted({row["rate"] for row in own})
        cells = [
            (schedule, *(_top1(found(own, rate=rate, schedule=schedule) or [{"value": np.nan}]) for rate in rates))
            for schedule in sorted({row["schedule"] for row in own})
        ]
        if own:
            head = ("schedule", *(f"{rate:g}" for rate in rates))
            lines += ["", f"{subject.title}:", "", table(head, cells).replace("nan", "")]
    return lines


def plot_curves(rows: list[Row]) -> Figure:
    """Draw top-1 in percent over the steps after the surgery, one line per schedule."""
    figure, axes = new_figure(7.0, 3.6)
    for name, (color, width) in LINES.items():
        for row in found(rows, schedule=name):
            steps, top1 = zip(*row["points"], strict=True)
            axes.plot(steps, top1, color=color, linewidth=width, label=name.strip("`"))
    axes.set_xlabel("steps after the surgery", fontsize=9)
    axes.set_ylabel("top-1, %")
    axes.set_xlim(left=0)
    add_legend(figure, *axes.get_legend_handles_labels(), "lower center")
    return figure
