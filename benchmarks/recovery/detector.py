"""What a detector is worth once a quarter of one group's channels went, as planned and after the default steps.

    PRUNERECOVER_DATA=... python -m benchmarks.recovery.detector

FastestDet was trained elsewhere, with strong augmentation: its BatchNorm statistics are not those of plain images, and
nothing here has labels that say how good it is. Each group of `find_groups` loses a quarter of its channels, those of
least norm, in turn. Before that, on training images alone: which divergence foretells what mAP50 is lost, as
planned from a few images and with BatchNorm statistics estimated anew. Resumable group by group; ten minutes on a core.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.data.fastestdet import Scenes, fastestdet, map50, scenes
from benchmarks.data.real import made_by, parser, stored, write
from prunerecover import Budget, apply_plan, find_groups, plan_width, recalibrate_batchnorm, reconstruct
from prunerecover.display.markdown import table
from prunerecover.divergence.measure import mean_divergence
from prunerecover.divergence.registry import comparing_by
from prunerecover.model.batches import ModelInputs, split_batches
from prunerecover.recovery.judged import AS_IT_IS, RECALIBRATED

NAME, SHARE, IMAGES, BATCH, SEED = "detector_recovery", 0.25, 96, 16, 0
WORSE = 0.5  # points of mAP50 that the default steps may cost
HEAD = ("group", "as planned", "reconstruct", "kept", "output divergence")
RIVALS = ("relative", "detection_map")
FORETOLD = (
    "Which divergence foretells that: {pairs} pruned networks, as planned from {few} images and with BatchNorm "
    "statistics estimated anew, on training images that nothing is fitted to: the divergence on the held-out ones, and "
    "the points of mAP50 that are lost on {n}. Correlation of the square root of the divergence with these points: "
    "{found}."
)
TEXT = (
    "FastestDet without a quarter of the channels of one group at a time, those of least norm. mAP50 on {n} "
    "images of COCO's val2017 that the network has not seen; dense {dense:.1f}. Planned and reconstructed on "
    f"{IMAGES} training images without labels; output divergence: of objects, boxes and classes together, on every 4th "
    f"of them, with the others to fit to. A way is kept if it is nearer, and no part further off, beyond its standard "
    f"error. {{done}} of {{groups}} groups, seed {SEED}; after `reconstruct` {{worse}} of them are more "
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


def foretold(dense: nn.Module, group: str, groups: list[str], batches: list[Tensor], seen: Scenes) -> Row:
    """Return divergences and lost mAP50 of one group, as planned and recalibrated, on training images.

    Args:
        dense: The network.
        group: That loses channels.
        groups: All of them.
        batches: To fit to, and every 4th sample to judge on.
        seen: The training images.
    """
    plan = plan_width(
        dense,
        Budget(ratio={"channel": SHARE}),
        batches=batches[:1],
        importance="l2_norm",
        ignore=[other for other in groups if other != group],
        seed=SEED,
    )
    network = copy.deepcopy(dense)
    apply_plan(network, plan)
    samples = split_batches(batches, torch.device("cpu"), SEED)
    outside = _others(seen, samples.fit)
    whole, rows = map50(dense, outside), []
    for way in (AS_IT_IS, RECALIBRATED):
        if way == RECALIBRATED:
            recalibrate_batchnorm(network, samples.fit)
        row = {"way": way, "lost": whole - map50(network, outside)}
        for name in RIVALS:
            with comparing_by(name), torch.no_grad():
                outputs = ([net(batch.args[0]) for batch in samples.held_out] for net in (dense, network))
                row[name] = mean_divergence(samples.held_out, *outputs)
        rows.append(row)
    return {"group": group, "n": len(outside.images), "ways": rows}


def _others(seen: Scenes, fit: Sequence[ModelInputs]) -> Scenes:
    """Return the scenes that are not fitted to."""
    fitted = torch.cat([batch.args[0] for batch in fit]).flatten(1).double().sum(1)
    sums = seen.images.flatten(1).double().sum(1)
    left = [number for number, own in enumerate(sums) if not torch.isclose(fitted, own, rtol=1e-12, atol=0).any()]
    return Scenes(seen.images[left], [seen.objects[number] for number in left], seen.sizes[left])


def foretelling(rows: list[Row]) -> str:
    """Return the sentences on which divergence foretells the loss."""
    ways = [way for row in rows for way in row["ways"]]
    lost = [way["lost"] for way in ways]
    found = {name: np.corrcoef([way[name] ** 0.5 for way in ways], lost)[0, 1] for name in RIVALS}
    said = ", ".join(f"`{name}` {value:.2f}" for name, value in found.items())
    return FORETOLD.format(pairs=len(ways), few=BATCH, n=rows[0]["n"], found=said)


def page(dense: float, rows: list[Row], told: list[Row], groups: int, n: int) -> str:
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
            *(["", foretelling(told)] if told else []),
        ]
    )


def main() -> None:
    """Measure the groups that are missing, and write the page after each."""
    options = parser(__doc__)
    options.add_argument("--groups", type=int, help="how many, the last ones first, which take least; all if left out")
    asked = options.parse_args()
    dense, seen, training = fastestdet(), scenes("val2017"), scenes("train2017")
    images = training.images[:IMAGES].contiguous(memory_format=torch.channels_last)  # pooled twice as fast
    batches = list(images.split(BATCH))
    groups = [group.name for group in find_groups(dense, batches[0][:1]).groups]
    whole, rows, told = map50(dense, seen), stored(NAME), stored(NAME, "foretold")
    for group in groups[::-1][: asked.groups]:
        if all(row["group"] != group for row in told):
            told.append(foretold(dense, group, groups, batches, training))
        if all(row["group"] != group for row in rows):
            rows.append(measured(dense, group, groups, batches, seen))
            print(rows[-1], flush=True)
        rows.sort(key=lambda row: groups.index(row["group"]))
        write(
            NAME,
            {"rows": rows, "foretold": told, "dense": whole, "n": len(seen.images), "seed": SEED},
            page(whole, rows, told, len(groups), len(seen.images)),
        )


if __name__ == "__main__":
    main()
