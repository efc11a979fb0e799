"""What a detector is worth once a quarter of one group's channels went, as planned and after the default steps.

    PRUNERECOVER_DATA=... python -m benchmarks.recovery.detector

FastestDet was trained elsewhere, with strong augmentation: its BatchNorm statistics are not those of plain images, and
nothing here has labels that say how good it is. Each group of `find_groups` loses a quarter of its channels, those of
least magnitude, in turn. Resumable group by group; about two hours on a core, as each layer behind a group is fitted.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.data.real import made_by, parser, stored, write
from benchmarks.recovery.fastestdet import fastestdet, map50, scenes
from prunerecover import Budget, apply_plan, find_groups, plan_width, reconstruct
from prunerecover.display.markdown import table

NAME, SHARE, IMAGES, BATCH, SEED = "detector_recovery", 0.25, 96, 16, 0
WORSE = 0.5  # points of mAP50 that the default steps may cost
HEAD = ("group", "as planned", "reconstruct", "kept", "output divergence")
TEXT = (
    "FastestDet without a quarter of the channels of one group at a time, those of least magnitude. mAP50 on {n} "
    "images of COCO's val2017 that the network has not seen; dense {dense:.1f}. Planned and reconstructed on "
    f"{IMAGES} training images without labels; output divergence: relative squared error on every 4th of them, with "
    f"the others to fit to. {{done}} of {{groups}} groups, seed {SEED}; after `reconstruct` {{worse}} of them are more "
    f"than {WORSE} points worse than as planned."
)
Row = dict[str, Any]


def measured(dense: nn.Module, group: str, groups: list[str], batches: list[Tensor], seen: Any) -> Row:
    """Prune one group and measure what it is worth."""
    plan = plan_width(
        dense,
        Budget(ratio={"channel": SHARE}),
        batches=batches,
        importance="l2_norm",
        ignore=[other for other in groups if other != group],
        seed=SEED,
    )
    network = copy.deepcopy(dense)
    apply_plan(network, plan)
    planned = map50(network, seen)
    kept = reconstruct(network, dense, plan, batches, seed=SEED)
    return {
        "group": group,
        "planned": planned,
        "after": planned if kept.way == "as it is" else map50(network, seen),
        "kept": kept.way,
        "divergence": dict(kept.divergence),
    }


def page(dense: float, rows: list[Row], groups: int, n: int) -> str:
    """Return the page."""
    worse = sum(row["after"] < row["planned"] - WORSE for row in rows)
    lines = [
        (
            row["group"],
            f"{row['planned']:.1f}",
            f"{row['after']:.1f}",
            row["kept"],
            ", ".join(f"{way} {value:.3f}" for way, value in row["divergence"].items()),
        )
        for row in rows
    ]
    return "\n".join(
        [
            "# A detector after surgery",
            "",
            *made_by(["python -m benchmarks.recovery.detector"]),
            TEXT.format(n=n, dense=dense, done=len(rows), groups=groups, worse=worse),
            "",
            table(HEAD, lines),
        ]
    )


def main() -> None:
    """Measure the groups that are missing, and write the page after each."""
    options = parser(__doc__)
    options.add_argument("--groups", type=int, help="how many, the last ones first, which take least; all if left out")
    asked = options.parse_args()
    dense, seen = fastestdet(), scenes("val2017")
    images = scenes("train2017").images[:IMAGES].contiguous(memory_format=torch.channels_last)  # pooled twice as fast
    batches = list(images.split(BATCH))
    groups = [group.name for group in find_groups(dense, batches[0][:1]).groups]
    rows, whole = stored(NAME), map50(dense, seen)
    for group in groups[::-1][: asked.groups]:
        if any(row["group"] == group for row in rows):
            continue
        rows.append(measured(dense, group, groups, batches, seen))
        print(rows[-1], flush=True)
        rows.sort(key=lambda row: groups.index(row["group"]))
        write(
            NAME,
            {"rows": rows, "dense": whole, "n": len(seen.images), "seed": SEED},
            page(whole, rows, len(groups), len(seen.images)),
        )


if __name__ == "__main__":
    main()
