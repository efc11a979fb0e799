"""Score of a detector without a quarter of one group's channels, as planned and after the default steps.

    PRUNERECOVER_DATA=... python -m benchmarks.recovery.detector

FastestDet was trained elsewhere, with strong augmentation: the BatchNorm statistics differ from plain images, and
no labels tell the quality. Each group of `find_groups` loses a quarter of its channels, those of
least norm, in turn. Before that, on training images alone: which divergence foretells what mAP50 is lost, as
planned from a few images and with BatchNorm statistics estimated anew. Ten minutes on a core.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.data.fastestdet import Scenes, fastestdet, map50, scenes
from benchmarks.runner.benchmark import Axis, Benchmark
from benchmarks.runner.page import Column, Line, Table, figure, text
from benchmarks.runner.rows import Figure, Row
from prunerecover import Budget, Plan, apply_plan, find_groups, plan_width, recalibrate_batchnorm, reconstruct
from prunerecover.calibration.samples import split_batches
from prunerecover.divergence.measure import mean_divergence
from prunerecover.divergence.registry import comparing_by
from prunerecover.model.batches import ModelInputs
from prunerecover.recovery.judged import AS_IT_IS, RECALIBRATED

SHARE, IMAGES, BATCH, SEED, GROUPS, DENSE = 0.25, 96, 16, 0, 22, -1
WORSE = 0.5  # points of mAP50 that the default steps may cost
RIVALS = ("relative", "detection_map")


@cache
def dense() -> nn.Module:
    """Return the network."""
    return fastestdet()


@cache
def batches() -> list[Tensor]:
    """Return training images, in a memory format that is pooled twice as fast."""
    return list(scenes("train2017").images[:IMAGES].contiguous(memory_format=torch.channels_last).split(BATCH))


@cache
def groups() -> list[str]:
    """Return the names of all groups."""
    return [group.name for group in find_groups(dense(), batches()[0][:1]).groups]


def narrowed(group: str, images: list[Tensor]) -> tuple[nn.Module, Plan]:
    """Return the network without a quarter of a group, and the plan."""
    ignored = [other for other in groups() if other != group]
    how: dict[str, Any] = {"importance": "l2_norm", "ignore": ignored, "seed": SEED}
    plan = plan_width(dense(), Budget(ratio={"channel": SHARE}), batches=images, **how)
    network = copy.deepcopy(dense())
    apply_plan(network, plan)
    return network, plan


def measure(group: int) -> dict[str, Any]:
    """Prune one group and measure the score, as planned and after the default steps."""
    seen = scenes("val2017")
    if group == DENSE:
        return {"name": "dense", "planned": Figure(map50(dense(), seen), n=len(seen.images))}
    name = groups()[group]
    told = foretold(name)
    network, plan = narrowed(name, batches())
    planned = map50(network, seen)
    kept = reconstruct(network, dense(), plan, batches(), seed=SEED)
    after = planned if kept.way == AS_IT_IS else map50(network, seen)
    figures = {"planned": Figure(planned, n=len(seen.images)), "after": Figure(after, n=len(seen.images))}
    return {**figures, "name": name, "kept": kept.way, "divergence": dict(kept.divergence), "foretold": told}


def foretold(group: str) -> list[dict[str, Any]]:
    """Return divergences and lost mAP50 of one group, as planned and recalibrated, on training images."""
    network, _ = narrowed(group, batches()[:1])
    samples = split_batches(batches(), torch.device("cpu"), SEED)
    outside = _others(scenes("train2017"), samples.fit)
    whole, rows = map50(dense(), outside), []
    for way in (AS_IT_IS, RECALIBRATED):
        if way == RECALIBRATED:
            recalibrate_batchnorm(network, samples.fit)
        row = {"way": way, "lost": whole - map50(network, outside)}
        for name in RIVALS:
            with comparing_by(name), torch.no_grad():
                outputs = ([net(batch.args[0]) for batch in samples.held_out] for net in (dense(), network))
                row[name] = mean_divergence(samples.held_out, *outputs)
        rows.append(row)
    return rows


def _others(seen: Scenes, fit: Sequence[ModelInputs]) -> Scenes:
    """Return the scenes that are not fitted to."""
    fitted = torch.cat([batch.args[0] for batch in fit]).flatten(1).double().sum(1)
    sums = seen.images.flatten(1).double().sum(1)
    left = [number for number, own in enumerate(sums) if not torch.isclose(fitted, own, rtol=1e-12, atol=0).any()]
    return Scenes(seen.images[left], [seen.objects[number] for number in left], seen.sizes[left])


def closing(rows: Sequence[Row]) -> list[str]:
    """Return lines on what the default steps cost, and on which divergence foretells the loss."""
    rows = [row for row in rows if row["group"] != DENSE]
    worse = sum(row.figures["after"].value < row.figures["planned"].value - WORSE for row in rows)
    ways = [way for row in rows for way in row["foretold"]]
    lost = [way["lost"] for way in ways]
    found = {name: np.corrcoef([way[name] ** 0.5 for way in ways], lost)[0, 1] for name in RIVALS}
    said = ", ".join(f"`{name}` {value:.2f}" for name, value in found.items())
    return [
        f"After `reconstruct` {worse} of {len(rows)} groups are more than {WORSE} points worse than as planned.",
        f"Which divergence foretells that: {len(ways)} pruned networks, as planned from {BATCH} images and with "
        "BatchNorm statistics estimated anew, on training images that nothing is fitted to. Correlation of the square "
        f"root of the divergence with the points of mAP50 that are lost: {said}.",
    ]


def divergences(line: Line) -> str:
    """Return the divergence of each way."""
    return ", ".join(f"{way} {value:.3f}" for way, value in line.first.get("divergence", {}).items())


BENCHMARK = Benchmark(
    name="detector_recovery",
    doc=__doc__,
    title="A detector after surgery",
    text=f"""FastestDet without a quarter of the channels of one group at a time, those of least norm. mAP50 on 128
    images of COCO's val2017 that the network has not seen. Planned and reconstructed on {IMAGES} training
    images without labels; output divergence: of objects, boxes and classes together, on every 4th of them, with the
    others to fit to. A way is kept if it is nearer, and no part further off, beyond its standard error. Seed
    {SEED}.""",
    measure=measure,
    axes={"group": Axis(tuple(range(GROUPS)))},
    references=[{"group": DENSE}],
    threads=0,
    tables=(
        Table(
            [
                text("name", "group"),
                figure("planned", "as planned"),
                figure("after", "reconstruct"),
                text("kept"),
                Column("output divergence", divergences),
            ],
            line=("group",),
        ),
    ),
    closing=closing,
)
main = BENCHMARK.main

if __name__ == "__main__":
    main()
