"""Plans for the time in a runtime beside plans for MACs, at equal output divergence: four networks, two runtimes.

    PRUNERECOVER_DATA=... python -m benchmarks.end_to_end.clocks --networks ResNet-56 --methods MACs onnxruntime

Every plan is of `plan_pruning`, from the same calibration images and seed; networks with BatchNorm are reconstructed.
Divergence is of the output on further images unseen by all plans; time is a share of the dense network's in the
runtime. Scores are in a store for each network: a killed run continues. A row takes between 2 and 20 minutes on a core.
MobileNetV2 is trained by `benchmarks.width.cifar_models`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from matplotlib.figure import Figure as Picture
from torch import Tensor, nn

from benchmarks.data import cifar, tiny_imagenet
from benchmarks.data.fastestdet import fastestdet, scenes
from benchmarks.data.real import deit_tiny
from benchmarks.runner.at_equal import divergence_of, time_ratio
from benchmarks.runner.benchmark import Axis, Benchmark
from benchmarks.runner.divergences import divergences
from benchmarks.runner.page import Column, Line, Table, counts, figure, text, told
from benchmarks.runner.plans import saved_plan, shares
from benchmarks.runner.rows import CHECKPOINTS, Figure, Row
from benchmarks.width.cifar_models import load
from prunerecover import Budget, Plan, apply_plan, merge, plan_pruning, reconstruct
from prunerecover.cost.latency import Timed, latency_ratio
from prunerecover.model.batches import as_inputs
from prunerecover.model.copies import deep_copy
from prunerecover.recovery.reconstruction import made_for

MACS, RUNTIMES = "MACs", ("onnxruntime", "openvino")
TIMES, OPERATIONS = (0.1, 0.2, 0.35), (0.2, 0.35, 0.5, 0.65)  # shares: time falls by less than the MACs
FOLDER, PAIRS, SEED = CHECKPOINTS / "clocks", 60, 0


@dataclass(frozen=True)
class Subject:
    """Network with its images.

    Attributes:
        dense: Function that loads the network.
        calibration: Function that loads images to plan on, and to fit and tune on.
        further: Function that loads images for the divergence.
        batch: Number of images in a batch, also of a timed one.
        runtimes: Names of the runtimes.
    """

    dense: Callable[[], nn.Module]
    calibration: Callable[[], Tensor]
    further: Callable[[], Tensor]
    batch: int
    runtimes: tuple[str, ...] = RUNTIMES


def _cifar(model: str) -> Subject:
    return Subject(
        partial(load, model),
        lambda: cifar.training_images(768, SEED)[0],
        lambda: cifar.scored_images("cifar10")[0][:1000],
        16,
    )


SUBJECTS: Mapping[str, Subject] = {
    "ResNet-56": _cifar("ResNet-56"),
    "FastestDet": Subject(fastestdet, lambda: scenes("train2017").images, lambda: scenes("val2017").images, 4),
    "MobileNetV2": _cifar("MobileNetV2"),
    "DeiT-Tiny": Subject(
        lambda: tiny_imagenet.unfused(deit_tiny()),
        lambda: tiny_imagenet.training_images(256)[0],
        lambda: torch.cat([images.float() for images, _ in tiny_imagenet.validation(1000)]),
        4,
        RUNTIMES[:1],
    ),
}


def plan_of(network: str, method: str, budget: float) -> Plan:
    """Plan for a share of the MACs, or of the time in a runtime; scores are in the network's store."""
    subject = SUBJECTS[network]
    asked = Budget(macs=budget) if method == MACS else Budget(latency=budget, clock=method)
    batches = torch.split(subject.calibration(), subject.batch)
    return plan_pruning(subject.dense(), asked, batches=batches, seed=SEED, store=FOLDER / f"store_{network}")


def recovered(network: str, plan: Plan) -> nn.Module:
    """Return the merged network after a plan and, with BatchNorm, after its reconstruction on the same images."""
    subject, dense = SUBJECTS[network], SUBJECTS[network].dense()
    pruned = deep_copy(dense).eval()
    apply_plan(pruned, plan)
    if made_for(pruned):
        reconstruct(pruned, dense, plan, torch.split(subject.calibration(), subject.batch), seed=SEED)
    merge(pruned)
    return pruned


@cache
def timed(network: str, runtime: str) -> Timed:
    """Return a dense network, ready in a runtime, with a batch of further images."""
    subject = SUBJECTS[network]
    return Timed(subject.dense(), as_inputs(subject.further()[: subject.batch]), runtime)


def measure(network: str, method: str, budget: float) -> dict[str, Any]:
    """Plan, and measure the divergence, the MACs and the time in the runtime; of a plan for MACs, in each runtime."""
    name = f"{network}_{method}_{budget}"
    plan = saved_plan(name, partial(plan_of, network, method, budget), FOLDER / "plans")
    pruned, found = recovered(network, plan), dict[str, Any]()
    for runtime in SUBJECTS[network].runtimes if method == MACS else (method,):
        dense = timed(network, runtime)
        ratio = latency_ratio(dense, pruned, dense.inputs, pairs=PAIRS, warmup=5, clock=runtime)
        found |= {runtime: Figure.within(ratio.ratio, ratio.pairs), f"dense_ms_{runtime}": ratio.dense_ms}
    cost = shares(SUBJECTS[network].dense(), pruned, timed(network, RUNTIMES[0]).inputs)
    removed = {kind: len(names) for kind, names in plan.removed.items()}
    lost = divergences(SUBJECTS[network].dense(), pruned, SUBJECTS[network].further(), 50)
    return {"divergence": Figure.of(lost), **found, **cost, "removed": removed}


def relative(head: str) -> Column:
    """Return the column of the time relative to plans for MACs of the same network."""

    def cell(line: Line) -> str:
        clock, network = line.first.method, line.first["network"]
        others = [row for row in line.there if row.is_of(network=network, method=MACS) and clock in row.figures]
        found = time_ratio(line.rows, others, clock) if others else None
        return "" if found is None else told(found, 3)

    return Column(head, cell)


def picture(rows: Sequence[Row]) -> Picture:
    """Draw time over divergence, for each network and runtime."""
    names = [name for name in SUBJECTS if any(row["network"] == name for row in rows)]
    drawn = Picture(figsize=(3.2 * len(names), 5.6), layout="constrained")
    for column, name in enumerate(names):
        for place, runtime in enumerate(SUBJECTS[name].runtimes):
            axes = drawn.add_subplot(2, len(names), 1 + column + place * len(names))
            for method in (MACS, runtime):
                own = [r for r in rows if (r["network"], r.method) == (name, method) and runtime in r.figures]
                if own:
                    points = sorted((divergence_of(row), row.figures[runtime].value) for row in own)
                    axes.plot(*zip(*points, strict=True), marker="o", markersize=4, label=f"planned for {method}")
            axes.set(xscale="log", title=name, xlabel="divergence", ylabel=f"time in {runtime}")
            axes.legend(fontsize=7)
    return drawn


BENCHMARK = Benchmark(
    title="The clock that serves",
    text=f"""Plans of `plan_pruning` for shares of the time in a runtime, and for shares of the MACs, from the same
    calibration images and seed {SEED}; networks with BatchNorm are reconstructed. Divergence: of the output on further
    images, which no plan has seen. Time: relative to the dense network in the same runtime, in {PAIRS} interleaved
    pairs of a batch, on one thread and by processor time; the machine also had other work. Relative to plans for MACs:
    at the divergence of the plan, in the logarithm between the two neighbouring plans for MACs. The intervals are over
    the images and the timed pairs. Time falls by less than the MACs where [numbers of channels](channel_counts.md)
    suit no runtime.""",
    measure=measure,
    axes={"network": Axis(tuple(SUBJECTS)), "method": Axis((MACS, *RUNTIMES)), "budget": Axis((0.1, *OPERATIONS))},
    skipped=lambda network, method, budget: (
        budget not in (OPERATIONS if method == MACS else TIMES) or method not in (MACS, *SUBJECTS[network].runtimes)
    ),
    pictures={"": picture},
    tables=(
        Table(
            [text("network"), text("method", "runtime"), relative("time, relative to plans for MACs (95%)")],
            title="At equal divergence",
            line=("network", "method"),
            where=lambda row: row.method != MACS,
        ),
        Table(
            [
                text("method", "planned for"),
                text("budget", "share", "{:.0%}"),
                figure("divergence", "divergence (95%)", 4),
                text("macs_share", "MACs left", "{:.3f}"),
                *(figure(name, f"time in {name} (95%)", 3) for name in RUNTIMES),
                relative("relative to plans for MACs (95%)"),
                counts("removed", "removed"),
            ],
            title="{network}",
            by=("network",),
            line=("method", "budget"),
        ),
    ),
)

if __name__ == "__main__":
    BENCHMARK.main()
