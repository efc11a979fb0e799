"""Learning rates after surgery: the user's own, and with RecoverySchedule beside the pruning callback.

    PRUNERECOVER_DATA=... python -m benchmarks.recovery.schedule --subjects resnet20 --seeds 0 1 2
    PRUNERECOVER_DATA=... python -m benchmarks.recovery.schedule --scored held-out curve

ResNet-20 without half of its MACs and DeiT-Tiny without a third or half train on in the fit that prunes them, at three
constant rates. Rows are scored on test images, on held-out training images (the default is the best there, of all
`--schedules`), or over the steps, for the picture. A minute a fit on a core; a plan of DeiT-Tiny takes a quarter of an
hour.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import lightning.pytorch as pl
from matplotlib.figure import Figure as Picture

from benchmarks.recovery.fits import fit
from benchmarks.recovery.schedule_subjects import SUBJECTS, Curve
from benchmarks.runner.benchmark import Axis, Benchmark
from benchmarks.runner.page import Column, Table, ahead, figure, seeds, text
from benchmarks.runner.rows import Figure, Row
from prunerecover import RecoverySchedule
from prunerecover.display.style import BLUE, ORANGE, VERMILION, add_legend, new_figure

CONSTANT, DEFAULT = "constant", "`RecoverySchedule()`"
SCHEDULES: dict[str, Callable[[], list[pl.Callback]]] = {
    CONSTANT: list,
    DEFAULT: lambda: [RecoverySchedule()],
    "`RecoverySchedule(decay=1.0)`": lambda: [RecoverySchedule(decay=1.0)],
    "warm-up of 10%, then constant": lambda: [RecoverySchedule(0.1, decay=0.0, lr=None)],
    "linear to zero": lambda: [RecoverySchedule(0, decay=1.0, lr=None)],
    "warm-up of 25%, times linear to zero": lambda: [RecoverySchedule(0.25, decay=1.0, lr=None)],
    "warm-up of 50%, times linear to zero": lambda: [RecoverySchedule(0.5, decay=1.0, lr=None)],
}
TEST, HELD_OUT, CURVE = "test", "held-out", "curve"
CHOSEN_ON, CURVES_AT = 100, 0.05  # seed of what the default was chosen by; rate of the picture
LINES = {CONSTANT: (VERMILION, 1.2), "linear to zero": (ORANGE, 1.2), DEFAULT: (BLUE, 2.2)}


def measure(scored: str, seed: int, subject: str, rate: float, method: str) -> dict[str, Any]:
    """Prune and train in a single fit, and score."""
    one, callbacks, curve = SUBJECTS[subject], SCHEDULES[method](), Curve()
    beside = [one.surgeon(seed), *callbacks, *([curve] if scored == CURVE else [])]
    network = fit(one.subject, rate, one.epochs, seed, beside)
    if scored == CURVE:
        return {"points": curve.points}
    hits = one.subject.scores(network) if scored == TEST else one.held_out(network, seed)
    shares = [share for each in callbacks for share in each.state_dict().get("shares", {}).values()]
    return {"top1": Figure.of(hits), "shares": shares}


def skipped(scored: str, seed: int, subject: str, rate: float, method: str) -> bool:
    """Whether a row has a rate, seed or network without a score of this kind."""
    if rate not in SUBJECTS[subject].subject.rates or (scored == HELD_OUT) != (seed == CHOSEN_ON):
        return True
    return scored == CURVE and (subject, rate, seed) != ("resnet20", CURVES_AT, 0)


def picture(rows: Sequence[Row]) -> Picture:
    """Draw top-1 in percent over the steps after the surgery, a line per schedule."""
    drawn, axes = new_figure(7.0, 3.6)
    for name, (color, width) in LINES.items():
        for row in (row for row in rows if row["scored"] == CURVE and row.method == name):
            steps, top1 = zip(*row["points"], strict=True)
            axes.plot(steps, top1, color=color, linewidth=width, label=name.strip("`"))
    axes.set_xlabel("steps after the surgery", fontsize=9)
    axes.set_ylabel("top-1, %")
    axes.set_xlim(left=0)
    add_legend(drawn, *axes.get_legend_handles_labels(), "lower center")
    return drawn


SHOWN = [text("rate", "", "{:g}"), text("method", "schedule"), figure("top1", "top-1 (each seed)", 1, 100, ends=False)]
BENCHMARK = Benchmark(
    name="recovery_schedule",
    title="The learning rate after surgery",
    text="""Constant: the rate as the optimizer has it, from the surgery to the end. The interval is the paired
    bootstrap's over images, of means over the seeds that both have. Times the rate: what the test right after the
    surgery chose, of 1, 1/2, 1/4, 1/8 and 1/16. The picture is of ResNet-20 at the highest rate. The default was chosen
    by the last tables, of training images that were left out of plans and trainings.""",
    measure=measure,
    axes={
        "scored": Axis((TEST, HELD_OUT, CURVE), "--scored", default=(TEST,)),
        "seed": Axis((0, CHOSEN_ON), open=True),
        "subject": Axis(tuple(SUBJECTS), default=("resnet20",)),
        "rate": Axis(tuple(sorted({rate for one in SUBJECTS.values() for rate in one.subject.rates})), open=True),
        "method": Axis(tuple(SCHEDULES), "--schedules", default=(CONSTANT, DEFAULT)),
    },
    skipped=skipped,
    complete=False,
    tables=(
        Table(
            [
                *SHOWN,
                ahead("top1", "ahead of constant by (95%)", 1, 100, same=("rate",), turned=True, method=CONSTANT),
                Column("times the rate", lambda line: ", ".join(f"{s:g}" for row in line.rows for s in row["shares"])),
                seeds(),
            ],
            title="{subject}",
            by=("scored", "subject"),
            line=("rate", "method"),
            where=lambda row: row["scored"] == TEST,
            text=lambda rows: SUBJECTS[rows[0]["subject"]].subject.text,
        ),
        Table(
            SHOWN,
            title="What the default was chosen by: {subject}",
            by=("scored", "subject"),
            line=("rate", "method"),
            where=lambda row: row["scored"] == HELD_OUT,
        ),
    ),
    pictures={"": picture},
)

if __name__ == "__main__":
    BENCHMARK.main()
