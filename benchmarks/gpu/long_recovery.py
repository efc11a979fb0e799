"""Long recovery on a GPU: DeiT-Tiny at shares of the GPU's latency, 30 epochs of 20,000 images with distillation.

    PRUNERECOVER_DATA=... python -m benchmarks.gpu.long_recovery --out FOLDER
    PRUNERECOVER_DATA=... python -m benchmarks.gpu.long_recovery --rehearse        (on a processor, within a minute)

BoundaryDPT by the book, its units with our replacements, the default of `DepthPrune`, `Prune`, whole blocks, and
torch-pruning's isomorphic widths, each at 50 and 33% of the latency of 256 images at a time in single precision. All
get the same recovery in bf16. Of PRUNERECOVER_DATA it reads data/tiny_imagenet and models/deit_tiny_patch16_224, 45 MB.
It ends within its minutes: rows for which there is no time are left, and a later run makes them. Rows that are
committed in docs/results or lie in FOLDER are not made again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

from torch import nn

from benchmarks.boundary import peers
from benchmarks.data.real import DEVICE
from benchmarks.data.tiny_imagenet import loss
from benchmarks.gpu.long_recovery_training import RATE, REHEARSAL, Recovery, Scale, hits
from benchmarks.runner.benchmark import Axis, Benchmark
from benchmarks.runner.page import Table, ahead, counts, figure, text
from benchmarks.runner.plans import removed
from benchmarks.runner.rows import CHECKPOINTS, Figure
from prunerecover import Budget, Plan, merge, plan_boundary, plan_depth, plan_pruning
from prunerecover.boundary.plan_boundary import PUBLISHED
from prunerecover.cost.environment import device_name
from prunerecover.cost.latency import latency_ratio
from prunerecover.cost.macs import count_macs
from prunerecover.model.copies import deep_copy

BUDGETS, MINUTES, SEED = (0.50, 0.33), 8.0, 0
PAIRS, SLACK = 20, 0.02  # behind a measured latency; by how much widths may miss it
BF16_BATCH = 4  # times the images, so that a GPU has something to do in bf16, too


def default(recovery: Recovery, budget: float) -> Plan:
    """What `DepthPrune(Budget(latency=...))` plans."""
    return plan_depth(recovery.dense(), Budget(latency=budget), batches=recovery.calibration)


def book(recovery: Recovery, budget: float) -> Plan:
    """BoundaryDPT: the split of a polynomial map of 22 short runs, gate gradients, identities."""
    how = {**PUBLISHED, "evaluate": recovery.short_runs(), "loss": loss}
    return plan_boundary(recovery.dense(), Budget(latency=budget), batches=recovery.calibration, **how)


def replaced(recovery: Recovery, budget: float) -> Plan:
    """The units of the book, with what fits best in their place; short runs that are kept are not made again."""
    names = [name for names in book(recovery, budget).removed.values() for name in names]
    return peers.plan_named(recovery.dense(), names, "calibrated", recovery.calibration)


def joint(recovery: Recovery, budget: float) -> Plan:
    """What `Prune(Budget(latency=...))` plans."""
    return plan_pruning(recovery.dense(), Budget(latency=budget), batches=recovery.calibration, loss=loss)


def blocks(recovery: Recovery, budget: float) -> Plan:
    """Whole blocks, by what they change in the output."""
    return plan_depth(recovery.dense(), Budget(latency=budget), batches=recovery.calibration, kinds="block")


PLANS: Mapping[str, Callable[[Recovery, float], Plan]] = {
    "DepthPrune default": default,
    "BoundaryDPT by the book": book,
    "its units, our replacements": replaced,
    "Prune": joint,
    "whole blocks": blocks,
}
WIDTH = "torch-pruning, isomorphic"
METHODS = (  # most telling first
    "DepthPrune default",
    "BoundaryDPT by the book",
    WIDTH,
    "Prune",
    "its units, our replacements",
    "whole blocks",
)
DENSE, CONTINUED = "dense", "dense, trained on"
SHARES = {"latency_share": "latency share", "latency_share_bf16": "in bf16", "macs_share": "MACs share"}


def isomorphic(recovery: Recovery, budget: float) -> nn.Module:
    """Narrow by torch-pruning, to the least share of the channels that meets the budget."""
    narrow = partial(peers.isomorphic, batches=recovery.calibration, loss=loss)
    return narrow(
        recovery.dense(),
        peers.least_ratio(lambda r: 1 - latency(recovery, narrow(recovery.dense(), r)), budget - SLACK),
    )


def latency(recovery: Recovery, network: nn.Module) -> float:
    """Return the share of the dense network's latency that a network has, in single precision."""
    images = recovery.calibration[0][0]
    return latency_ratio(recovery.dense(), network, images, pairs=PAIRS, warmup=5).ratio.value


def latency_in_bf16(recovery: Recovery, network: nn.Module) -> float:
    """Return this share in bf16, for more images at a time."""
    images = recovery.calibration[0][0].bfloat16().repeat(BF16_BATCH, 1, 1, 1)
    networks = (deep_copy(one).bfloat16() for one in (recovery.dense(), network))
    return latency_ratio(*networks, images, pairs=PAIRS, warmup=5).ratio.value


@cache
def recovery_of(rehearse: bool) -> Recovery:
    """Return what trains and scores, with everything that rows share, so that none of them is timed with it."""
    made = Recovery(REHEARSAL if rehearse else Scale(), CHECKPOINTS / "long_recovery_gpu")
    made.prepare()
    return made


def measure(budget: float, method: str, rehearse: bool) -> dict[str, Any]:
    """Prune by a method, recover and score."""
    recovery, started = recovery_of(rehearse), time.perf_counter()
    plan = PLANS[method](recovery, budget) if method in PLANS else Plan()
    network = isomorphic(recovery, budget) if method == WIDTH else recovery.pruned(plan)
    planning = time.perf_counter() - started
    untrained = Figure.of(hits(network, recovery.test))
    started = time.perf_counter()
    if method != DENSE:
        recovery.train(network, SEED)
    training = time.perf_counter() - started
    merge(network)
    image = recovery.calibration[0][0][:1]
    return {
        "untrained": untrained,
        "top1": Figure.of(hits(network, recovery.test)),
        "removed": removed(plan),
        "latency_share": latency(recovery, network),
        "latency_share_bf16": latency_in_bf16(recovery, network),
        "macs_share": count_macs(network, image) / count_macs(recovery.dense(), image),
        "planning_seconds": planning,
        "training_seconds": training,
        "device": device_name(DEVICE),
    }


OURS = "DepthPrune default"
BENCHMARK = Benchmark(
    name="long_recovery_gpu",
    doc=__doc__,
    title="Long recovery on a GPU: DeiT-Tiny on tiny_imagenet",
    text=f"""DeiT-Tiny on the 200 classes, {Scale.test:,} validation images. Each method removes a share of the latency
    of {Scale.calibration} images at a time in single precision, then trains {Scale.epochs} epochs of
    {Scale.images - Scale.held_out:,} images in bf16, by labels and the dense network's answers for {Scale.views} views
    of each: AdamW at {RATE:g} under `recovery_schedule`, the same for all. One seed, one rate, which nothing chose.
    Removed: attentions, activations, MLPs, blocks. Ahead by: points on the same images, paired, with their 95%
    interval.""",
    measure=measure,
    axes={"budget": Axis(BUDGETS, open=True), "method": Axis(METHODS)},
    references=[{"budget": 0.0, "method": DENSE}, {"budget": 0.0, "method": CONTINUED}],
    minutes=MINUTES,
    rehearsal=True,
    threads=0,
    tables=(
        Table(
            [
                text("method"),
                counts("removed", "removed", ("attention", "activation", "mlp", "block")),
                *(text(name, head, "{:.3f}") for name, head in SHARES.items()),
                figure("untrained", "untrained", 2, 100, ends=False),
                figure("top1", "top-1 (95%)", 2, 100),
                ahead("top1", "default ahead by", 1, 100, method=OURS),
                text("planning_seconds", "planning, s", "{:.0f}"),
                text("training_seconds", "training, s", "{:.0f}"),
                text("device"),
            ],
            title="{budget:.0%} of the latency out",
            by=("budget",),
        ),
    ),
)
main = BENCHMARK.main

if __name__ == "__main__":
    main()
