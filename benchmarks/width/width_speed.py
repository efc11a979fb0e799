"""Time of the scores of Tolerance of Difference: ours, the published package's, and training passes.

    pip install network-pruner==2.16
    PRUNERECOVER_DATA=... python -m benchmarks.width.width_speed

All runs are in one process on the same 256 CIFAR-10 images: U- and R-Score of ResNet-20 by us (median of 5) before and
after the published package (once, a minute); the same of ResNet-56 in units of a forward and backward pass over the
images (medians of interleaved runs); and another tolerance for known scores. Finding the groups, a later step of the
package, is timed by itself. The package computes distances from 8 images of each class; ours from all. Peak memory is a
separate process's, beyond the loaded network and images, with finding the groups.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.data.cifar import batches, cross_entropy
from benchmarks.runner.benchmark import Benchmark
from benchmarks.runner.page import Table, figure, text
from benchmarks.runner.rows import ROOT, Figure, Row
from benchmarks.width.cifar_models import load
from benchmarks.width.width_peers import SCORED, published_scores
from prunerecover.session.session import Session
from prunerecover.width.allocation.tolerance import curves, depths
from prunerecover.width.arguments import WidthConfig
from prunerecover.width.planner import WidthPlanner

REPEATS, SEED = 5, 0
SIGNALS = ("u_score", "r_score")


def seconds_of(call: Callable[[], Any]) -> float:
    """Return how long a call takes."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def score(model: str) -> WidthPlanner:
    """Find the groups and compute both scores of all."""
    planner = find(model)
    planner.scores(*SIGNALS)
    return planner


def find(model: str) -> WidthPlanner:
    """Find the groups, as the published package does in its pruning step."""
    return WidthPlanner(Session(load(model), batches(SCORED, SEED), seed=SEED), WidthConfig(seed=SEED))


def scoring(model: str) -> tuple[float, float]:
    """Return the seconds of finding the groups, and of scoring them."""
    started = time.perf_counter()
    planner = find(model)
    found = time.perf_counter() - started
    return found, seconds_of(lambda: planner.scores(*SIGNALS))


def one_pass(model: str) -> None:
    """Run the network forward and backward over the images."""
    network = load(model)
    for batch in batches(SCORED, SEED):
        cross_entropy(network, batch).backward()


def another_tolerance(planner: WidthPlanner) -> float:
    """Return the seconds of depths for another tolerance, from the scores on."""
    low, high = planner.scores(*SIGNALS)
    return median(seconds_of(lambda: depths(curves(low, high), 0.3)) for _ in range(REPEATS))


def memory_of(what: str) -> float:
    """Return the MiB that scoring ResNet-20 needs beyond the loaded data, in a separate process."""
    program = f"from benchmarks.width.width_speed import needed; print(needed({what!r}))"
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    return float(ran.stdout.split()[-1])


def needed(what: str) -> float:
    """Return the MiB of a measurement in this process."""
    batches(SCORED, SEED)
    Path("/proc/self/clear_refs").write_text("5")  # anew: reading the images took more than scoring
    before = peak_mib()
    MEASURED_ALONE[what]()
    return peak_mib() - before


def peak_mib() -> float:
    """Return the peak memory of this process; `getrusage` would include its parent's."""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 1024


def measure() -> Iterator[dict[str, Any]]:
    """Measure everything, each time beside its comparison."""
    batches(SCORED, SEED)
    score("ResNet-20")  # imports and caches
    runs = [scoring("ResNet-20") for _ in range(REPEATS)]
    theirs = seconds_of(lambda: published_scores("ResNet-20", SEED))
    runs += [scoring("ResNet-20") for _ in range(REPEATS)]
    finding, ours = ([run[i] for run in runs] for i in (0, 1))
    pairs = [(scoring("ResNet-56")[1], seconds_of(lambda: one_pass("ResNet-56"))) for _ in range(REPEATS)]
    passes = median(first / second for first, second in pairs)
    seconds = {
        "ResNet-20, prunerecover": median(ours),
        "ResNet-20, prunerecover, finding the groups before": median(finding),
        "ResNet-20, network-pruner 2.16": theirs,
        "ResNet-56, prunerecover": median(first for first, _ in pairs),
        "ResNet-56, one forward and backward pass": median(second for _, second in pairs),
        "ResNet-56, another tolerance": another_tolerance(score("ResNet-56")),
    }
    notes = {"threads": torch.get_num_threads(), "times_faster": theirs / median(ours), "passes": passes}
    for method, value in seconds.items():
        yield {"method": method, "seconds": Figure(value), **notes}
    for what in MEASURED_ALONE:
        yield {"method": f"peak memory, {what}", "mib": Figure(memory_of(what))}


MEASURED_ALONE: dict[str, Callable[[], Any]] = {
    "prunerecover": lambda: score("ResNet-20"),
    "one pass": lambda: one_pass("ResNet-20"),
    "network-pruner": lambda: published_scores("ResNet-20", SEED),
}


def closing(rows: Sequence[Row]) -> list[str]:
    """Return lines on how many times faster, and how many passes."""
    row = rows[0]
    return [
        f"ResNet-20: {row['times_faster']:.0f} times faster than network-pruner. ResNet-56: the time of "
        f"{row['passes']:.1f} passes. {row['threads']} threads."
    ]


BENCHMARK = Benchmark(
    name="width_speed",
    doc=__doc__,
    title="Seconds of the scores behind Tolerance of Difference",
    text=f"""{SCORED} CIFAR-10 images, U-Score and R-Score. Peak memory is that beyond the loaded network and images, of
    ResNet-20.""",
    measure=measure,
    references=[{}],
    also=("method",),
    complete=False,
    threads=0,
    tables=(Table([text("method", "what"), figure("seconds", "seconds", 5), figure("mib", "MiB", 0)]),),
    closing=closing,
)
main = BENCHMARK.main

if __name__ == "__main__":
    main()
