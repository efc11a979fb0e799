"""Time of ResNet-56 over the number of channels inside its blocks, in PyTorch, onnxruntime and OpenVINO.

    PRUNERECOVER_DATA=... python -m benchmarks.edge.channel_counts

Every block keeps so many sixteenths of the 16, 32 or 64 channels between its convolutions; values are random, since
time does not depend on them. Two minutes on a core.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import nn

from benchmarks.runner.benchmark import Axis, Benchmark
from benchmarks.runner.page import Table, figure, text
from benchmarks.runner.rows import Figure
from benchmarks.width.cifar_models import load
from prunerecover.cost.latency import Timed, latency_ratio
from prunerecover.cost.macs import count_macs
from prunerecover.model.batches import as_inputs
from prunerecover.recipes.networks.cifar_resnet import BasicBlock

CLOCKS, KEPT, BATCH, PAIRS = ("torch", "onnxruntime", "openvino"), (15, 14, 12, 10, 8, 6, 4, 2), 16, 60
EXAMPLE = torch.randn(BATCH, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def narrowed(sixteenths: int) -> nn.Module:
    """Return a ResNet-56 whose blocks have fewer inner channels, with random values."""
    network = load("ResNet-56")
    for block in network.modules():
        if isinstance(block, BasicBlock):
            inner = block.conv1.out_channels * sixteenths // 16
            block.conv1 = nn.Conv2d(block.conv1.in_channels, inner, 3, block.conv1.stride[0], 1, bias=False)
            block.bn1 = nn.BatchNorm2d(inner)
            block.conv2 = nn.Conv2d(inner, block.conv2.out_channels, 3, padding=1, bias=False)
    return network.eval()


@cache
def dense(clock: str) -> Timed:
    """Return the dense network, ready in a runtime."""
    return Timed(load("ResNet-56"), as_inputs(EXAMPLE), clock)


def measure(kept: int) -> dict[str, Any]:
    """Measure the share of the MACs and of the time in each runtime."""
    network, found = narrowed(kept), dict[str, Any]()
    for clock in CLOCKS:
        timed = latency_ratio(dense(clock), network, EXAMPLE, pairs=PAIRS, warmup=5, clock=clock)
        found[clock] = Figure.within(timed.ratio, timed.pairs)
    macs = count_macs(network, EXAMPLE) / count_macs(dense(CLOCKS[0]).network, EXAMPLE)
    return {**found, "macs_share": macs, "channels": ", ".join(str(width * kept // 16) for width in (16, 32, 64))}


BENCHMARK = Benchmark(
    title="Channels in a runtime",
    text=f"""ResNet-56 with fewer channels between the convolutions of every block; time relative to the dense network
    in the same runtime, in {PAIRS} interleaved pairs of a batch of {BATCH}, on one thread and by processor time (95%);
    the machine also had other work. Off the multiples of 8 channels time falls by far less than the MACs, and
    onnxruntime is slower than before without a sixteenth of the channels. `round_to=8` keeps multiples.""",
    measure=measure,
    axes={"kept": Axis(KEPT, "--kept")},
    tables=(
        Table(
            [
                text("channels", "channels inside blocks"),
                text("macs_share", "MACs left", "{:.3f}"),
                *(figure(clock, f"time in {clock} (95%)", 3) for clock in CLOCKS),
            ],
            line=("kept",),
        ),
    ),
)

if __name__ == "__main__":
    BENCHMARK.main()
