"""What planning costs: forward passes of DeiT-Tiny over its calibration images, counted in block calls.

    PRUNERECOVER_DATA=... python -m benchmarks.depth.planning_passes

A pass runs every block on every calibration image once. Blocks are counted and not timed, so that the figure does not
depend on the machine; the seconds beside it, of processor time, do. Divergence is of the merged plan on the held-out
images: what the search minimises.
"""

from __future__ import annotations

import time
from typing import Any
from unittest import mock

import torch
from timm.models.vision_transformer import Block

from benchmarks.data.real import deit_tiny
from benchmarks.data.tiny_imagenet import calibration
from benchmarks.runner.benchmark import Axis, Benchmark
from benchmarks.runner.page import Table, counts, text
from prunerecover import Budget, plan_depth

SAMPLES, DEPTH = 192, 12
BUDGETS: dict[str, Budget] = {
    "6 activations and 2 attentions": Budget(remove={"activation": 6, "attention": 2}),
    "20% of the MACs": Budget(macs=0.2),
    "33% of the MACs": Budget(macs=0.33),
    "3 blocks": Budget(remove={"block": 3}),
}


def measure(budget: str, method: str) -> dict[str, Any]:
    """Plan once, and count the images that blocks see, skipped ones apart."""
    model, batches, own, seen = deit_tiny(), calibration(SAMPLES), Block.forward, [0]

    def forward(block: Block, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        seen[0] += len(x)
        return own(block, x, *args, **kwargs)

    started = time.process_time()
    with torch.inference_mode():
        for images, _ in batches:
            model(images)
    dense, started = time.process_time() - started, time.process_time()
    with mock.patch.object(Block, "forward", forward):
        plan = plan_depth(model, BUDGETS[budget], batches=batches, search=method)
    seconds = time.process_time() - started
    *_, divergence = plan.evidence["divergence"].values()  # of all together: the deepest unit comes last
    return {
        "passes": seen[0] / (DEPTH * SAMPLES),
        "passes_by_time": seconds / dense,
        "seconds": seconds,
        "divergence": divergence,
        "removed": {kind: len(names) for kind, names in plan.removed.items()},
    }


BENCHMARK = Benchmark(
    name="planning_passes",
    doc=__doc__,
    title="What planning in depth costs",
    text=f"""DeiT-Tiny, {SAMPLES} training images of tiny_imagenet. A pass: every block on every image once.""",
    measure=measure,
    axes={"budget": Axis(tuple(BUDGETS)), "method": Axis(("greedy", "exact", "one_shot"), "--searches")},
    tables=(
        Table(
            [
                text("budget"),
                text("method", "search"),
                text("passes", "", "{:.1f}"),
                text("passes_by_time", "passes by time", "{:.0f}"),
                text("seconds", "", "{:.0f}"),
                text("divergence", "", "{:.3f}"),
                counts("removed", "removed"),
            ],
            line=("budget", "method"),
        ),
    ),
)
main = BENCHMARK.main

if __name__ == "__main__":
    main()
