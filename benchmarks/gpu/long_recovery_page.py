"""The page of `long_recovery.py`: a table per share of the latency, and what is not measured yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.data.real import ahead_by, made_by, unpacked
from benchmarks.gpu.long_recovery_training import Scale
from prunerecover.display.markdown import table

Row = dict[str, Any]
OURS = "DepthPrune default"
KINDS = ("attention", "activation", "mlp", "block")
HEAD = ("method", "removed", "latency share", "in bf16", "MACs share", "untrained", "top-1 (95%)", "default ahead by")


def markdown(rows: Sequence[Row], scale: Scale, wanted: Sequence[Row]) -> str:
    """Render the rows, by budget.

    Args:
        rows: That are there.
        scale: Of the run.
        wanted: Names of all rows.
    """
    lines = [
        "# Long recovery on a GPU: DeiT-Tiny on tiny_imagenet",
        "",
        *made_by(sorted({row["command"] for row in rows})),
        f"{', '.join(sorted({row['device'] for row in rows}))}. DeiT-Tiny on the 200 classes, {scale.test:,} "
        f"validation images. Each method removes a share of the latency of {scale.calibration} images at a time in "
        f"single precision, then trains {scale.epochs} epochs of {scale.images - scale.held_out:,} images in bf16, by "
        f"labels and the dense network's answers for {scale.views} views of each: AdamW at {wanted[0]['rate']:g} under "
        "`recovery_schedule`, the same for all. One seed, one rate, which nothing chose. Removed: attentions, "
        "activations, MLPs, blocks. Ahead by: points on the same images, paired, with their 95% interval.",
    ]
    for row in (row for row in rows if not row["budget"]):
        lines += ["", f"{row['method'].capitalize()}: {_top1(row)}."]
    for budget in sorted({row["budget"] for row in rows if row["budget"]}):
        own = [row for row in rows if row["budget"] == budget]
        lines += ["", f"## {budget:.0%} of the latency out", "", table((*HEAD, *TIMES), [_cells(r, own) for r in own])]
    left = [about for about in wanted if not any(about.items() <= row.items() for row in rows)]
    some = "; ".join(f"{about['method']} at {about['budget']:.0%}" for about in left)
    return "\n".join([*lines, *(["", f"Not measured yet: {some}."] if left else [])])


TIMES = ("planning, s", "training, s")


def _top1(row: Row) -> str:
    return f"{row['top1']:.2f} ({row['ci_low']:.2f}-{row['ci_high']:.2f})"


def _cells(row: Row, rows: Sequence[Row]) -> tuple[str, ...]:
    ours = [other for other in rows if other["method"] == OURS and row["method"] != OURS]
    return (
        row["method"],
        ", ".join(str(len(row["removed"].get(kind, ()))) for kind in KINDS) if row["removed"] else "widths",
        *(f"{row[name]:.3f}" for name in ("latency_share", "latency_share_bf16", "macs_share")),
        f"{row['untrained']:.2f}",
        _top1(row),
        ahead_by(unpacked(ours[0]["hits"], row["n"]), unpacked(row["hits"], row["n"])) if ours else "",
        *(f"{row[name]:.0f}" for name in ("planning_seconds", "training_seconds")),
    )
