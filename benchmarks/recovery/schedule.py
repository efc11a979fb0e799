"""The learning rate after surgery: as the user has it, and with RecoverySchedule beside the pruning callback.

    PRUNERECOVER_DATA=... python -m benchmarks.recovery.schedule --subject resnet20 --seeds 0 1 2
    PRUNERECOVER_DATA=... python -m benchmarks.recovery.schedule --subject deit_33 deit_50 --seeds 0
    PRUNERECOVER_DATA=... python -m benchmarks.recovery.schedule --choose --curve

ResNet-20 without half of its MACs and DeiT-Tiny without a third or half train on in the fit that prunes them, at three
constant rates. `--choose` compares schedules on training images that were left out; the default is what it
finds, and the page's other tables are of test images. `--curve` notes top-1 over the steps, for the picture.
Resumable: rows that are there are not made again. A minute a fit on a core; a plan of DeiT-Tiny takes a quarter of an
hour.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import torch

from benchmarks.data.real import RESULTS, parser, write
from benchmarks.depth.graph_depth_rows import add, measured, rows_so_far, without_samples
from benchmarks.recovery.schedule_deit import deit
from benchmarks.recovery.schedule_page import CONSTANT, CURVES_AT, DEFAULT, markdown, plot_curves
from benchmarks.recovery.schedule_resnet20 import RESNET20, Curve
from benchmarks.recovery.schedule_subjects import NAME
from prunerecover import RecoverySchedule
from prunerecover.display.style import save_figure

ROWS = RESULTS / f"{NAME}.rows.jsonl"
SUBJECTS = {"resnet20": RESNET20, "deit_33": deit(0.33), "deit_50": deit(0.5)}
SCHEDULES: dict[str, Callable[[], list[pl.Callback]]] = {
    CONSTANT: list,
    DEFAULT: lambda: [RecoverySchedule()],
    "`RecoverySchedule(decay=1.0)`": lambda: [RecoverySchedule(decay=1.0)],
    "warm-up of 10%, then constant": lambda: [RecoverySchedule(0.1, decay=0.0, lr=None)],
    "warm-up of 10%, linear to zero in the last 30%": lambda: [RecoverySchedule(0.1, decay=0.3, lr=None)],
    "linear to zero": lambda: [RecoverySchedule(0, decay=1.0, lr=None)],
    "warm-up of 25%, times linear to zero": lambda: [RecoverySchedule(0.25, decay=1.0, lr=None)],
    "warm-up of 50%, times linear to zero": lambda: [RecoverySchedule(0.5, decay=1.0, lr=None)],
}
CHOSEN_ON = 100  # the seed


def main() -> None:
    """Add rows that are missing, and write the page."""
    options = parser(__doc__)
    options.add_argument("--subject", nargs="*", default=["resnet20"], choices=list(SUBJECTS))
    options.add_argument("--rates", type=float, nargs="*", help="default: all three")
    options.add_argument("--schedules", nargs="*", default=[CONSTANT, DEFAULT], choices=list(SCHEDULES))
    options.add_argument("--choose", action="store_true", help="compare schedules on training images")
    options.add_argument("--curve", action="store_true", help="note top-1 of ResNet-20 over the steps")
    options.add_argument("--seeds", type=int, nargs="*", default=[], help="of the comparison on test images")
    given = options.parse_args()
    torch.set_num_threads(1)
    for name in given.subject:
        runs = [(seed, "test") for seed in given.seeds] + [(CHOSEN_ON, "held-out")] * given.choose
        for seed, scored in runs:
            for rate in given.rates or SUBJECTS[name].rates:
                for schedule in given.schedules:
                    add_row(name, rate, schedule, seed, scored)
    if given.curve:
        for schedule in given.schedules:
            add_curve(schedule)
    rows = rows_so_far(ROWS)
    commands = sorted({row["command"] for row in rows})
    write(NAME, {"rows": [without_samples(row) for row in rows], "commands": commands}, markdown(rows, SUBJECTS))
    if curves := [row for row in rows if row["scored"] == "curve"]:
        save_figure(plot_curves(curves), RESULTS / f"{NAME}.png")


def add_row(name: str, rate: float, schedule: str, seed: int, scored: str) -> None:
    """Add the row of a fit, unless it is there."""
    what: dict[str, Any] = {"subject": name, "rate": rate, "schedule": schedule, "scored": scored}
    if rows_so_far(ROWS, seed=seed, **what):
        return
    subject, callbacks = SUBJECTS[name], SCHEDULES[schedule]()
    network = subject.recovered(seed, rate, callbacks)
    hits = subject.tested(network) if scored == "test" else subject.held_out(network, seed)
    shares = [share for one in callbacks for share in one.state_dict().get("shares", {}).values()]
    print(without_samples(add(measured(hits, seed, **what, shares=shares), ROWS)), flush=True)


def add_curve(schedule: str) -> None:
    """Add the row of the curve of a schedule, unless it is there."""
    what: dict[str, Any] = {
        "subject": "resnet20",
        "rate": CURVES_AT,
        "schedule": schedule,
        "scored": "curve",
        "seed": 0,
    }
    if not rows_so_far(ROWS, **what):
        curve = Curve()
        RESNET20.recovered(0, CURVES_AT, [*SCHEDULES[schedule](), curve])
        print(add({**what, "points": curve.points}, ROWS), flush=True)


if __name__ == "__main__":
    main()
