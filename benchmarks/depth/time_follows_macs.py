"""Whether time follows MACs: DeiT-Tiny, batch 8, attention, activation and both removed from 3, 6 and 9 blocks.

    PRUNERECOVER_DATA=... python -m benchmarks.depth.time_follows_macs

Time share and MACs share are of the whole model, pruned and merged against dense; each is the median of
40 interleaved pairs.
"""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.data.real import deit_tiny
from benchmarks.runner.benchmark import Axis, Benchmark
from benchmarks.runner.page import Column, Line, Table, figure, text
from benchmarks.runner.plans import pruned
from benchmarks.runner.rows import Figure
from prunerecover import plan_depth
from prunerecover.cost.latency import latency_ratio
from prunerecover.cost.macs import count_macs

PAIRS = 40
KINDS = {"attention": ("attention",), "activation": ("activation",), "both": ("attention", "activation")}


def measure(method: str, budget: int) -> dict[str, Any]:
    """Remove `budget` units of each kind at random (cost does not depend on the choice), merge, and time."""
    images = torch.randn(8, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    dense, remove = deit_tiny(), dict.fromkeys(KINDS[method], budget)
    other = pruned(dense, plan_depth(dense, remove=remove, batches=[images], importance="random", replace="zero"))
    found = latency_ratio(dense, other, images, pairs=PAIRS, warmup=5, threads=torch.get_num_threads())
    macs = count_macs(other, images) / count_macs(dense, images)
    return {"time": Figure.within(found.ratio, PAIRS), "macs_share": macs, "threads": found.threads}


def over_macs(line: Line) -> str:
    """Return the share of the time divided by the share of the MACs."""
    return f"{line.first.figures['time'].value / line.first['macs_share']:.3f}"


BENCHMARK = Benchmark(
    title="Time follows MACs: DeiT-Tiny, batch 8, CPU",
    text="""Shares of the dense network's time and MACs, pruned and merged.""",
    measure=measure,
    axes={"method": Axis(tuple(KINDS), "--kinds"), "budget": Axis((3, 6, 9), "--blocks")},
    threads=0,
    tables=(
        Table(
            [
                text("method", "removed"),
                text("budget", "blocks"),
                text("macs_share", "MACs share", "{:.3f}"),
                figure("time", "time share (95% interval)", 3),
                Column("time / MACs", over_macs),
            ],
            line=("method", "budget"),
        ),
    ),
)

if __name__ == "__main__":
    BENCHMARK.main()
