"""Plans of Llamas with random weights, in memory and offloaded to disk, and the memory of planning.

    python -m benchmarks.language.large_models --sizes 30M

Each row is planned in a process of its own, on one thread. A model of 1B parameters takes 4.4 GB of the disk twice in
`checkpoints/`, and in memory beside its planning.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.language.large_models_run import LAYERS, RESIDENT, SHARE, SIZES, STAGES, TEXTS, TOKENS, config_of
from benchmarks.language.large_models_sizes import computed, moments
from benchmarks.runner.benchmark import Axis, Benchmark
from benchmarks.runner.page import Column, Line, Table, text
from benchmarks.runner.rows import CHECKPOINTS, Row

WEIGHTS = ("loaded", "on_disk")


def measure(size: str, weights: str) -> dict[str, Any]:
    """Plan in another process."""
    folder = CHECKPOINTS / f"large_models_{size}"
    command = [sys.executable, "-c", "from benchmarks.language.large_models_run import run; run()", size]
    if not folder.is_dir():
        subprocess.run([*command, "save", str(folder)], check=True)
    done = subprocess.run([*command, weights, str(folder)], check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def peak(kind: str, head: str) -> Column:
    """Return the column of the peak of a kind of memory over all stages, in MB."""
    return Column(head, lambda line: f"{max(own[kind] for own in line.first['peaks'].values()):,.0f}")


def of_stage(stage: str) -> Column:
    """Return the column of a stage's peaks of both kinds of memory, in MB."""

    def cell(line: Line) -> str:
        own = line.first["peaks"].get(stage)
        return f"{own['own']:,.0f}, {own['mapped']:,.0f}" if own else ""

    return Column(stage, cell)


def same(line: Line) -> str:
    """Return whether the plan is that of the loaded model."""
    loaded = [row for row in line.there if row.is_of(size=line.first.get("size"), weights="loaded")]
    return "" if not loaded else "yes" if loaded[0]["plan"] == line.first["plan"] else "no"


def expected(line: Line) -> str:
    """Return the computed moments of a walk, in MB."""
    return f"{moments(config_of(line.first.get('size'))) / 1e6:,.1f}"


def shapes(_: Sequence[Row]) -> Sequence[str]:
    """Render what larger models take."""
    about = """Computed from the shapes, on the meta device, in GB. Moments are those of one walk, for MLPs alone and
with attentions: planning keeps those of the dense network and of about three choices, 1 GiB of them in memory and the
rest in temporary files. Inputs of more than 4,096 features have no second moments. Passes are those of all samples that
the scores of variants take; fits in order add about two for each walk. Every pass reads all weights."""
    return "## What larger models take", about, computed()


BENCHMARK = Benchmark(
    title="Models larger than the memory",
    text=f"""Llamas with random weights in float32 ({LAYERS} layers), planned for {SHARE:.0%} fewer parameters with MLPs
    and neurons that may go, on {TEXTS} random texts of {TOKENS} tokens, in memory and offloaded to disk by
    accelerate. Memory in MB beyond that of the process with the opened model: its own, and resident pages of mapped
    files (weights, and held moments and fits). All mapped pages go back to the operating system whenever more than
    {RESIDENT} MB of them are resident, as under memory pressure: looked at before each linear runs, before each tensor
    is checked for numbers that are not finite, and by a second thread. Passes: of all samples through all blocks. A
    plan is the same if all edits and all bits of all tensors are.""",
    measure=measure,
    axes={"size": Axis(tuple(SIZES)), "weights": Axis(WEIGHTS, option="--weights")},
    tables=(
        Table(
            [
                text("size"),
                text("weights"),
                peak("own", "own memory"),
                peak("mapped", "mapped pages"),
                text("minutes", "processor minutes", "{:.1f}"),
                text("passes", form="{:.1f}"),
                text("walks"),
                text("moments", "moments of a walk", "{:,.1f}"),
                Column("computed", expected),
                Column("plan of the loaded model", same),
            ],
            line=("size", "weights"),
        ),
        Table(
            [text("size"), text("weights"), *map(of_stage, STAGES.values())],
            title="Peaks by stage: own memory, mapped pages",
            line=("size", "weights"),
        ),
    ),
    closing=shapes,
)

if __name__ == "__main__":
    BENCHMARK.main()
