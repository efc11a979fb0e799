"""DeiT-Tiny planned by one process, and by two ranks of torch.distributed that share the work.

    PRUNERECOVER_DATA=... python -m benchmarks.planning.two_ranks

Each process has one thread. The machine has to be idle otherwise, and to have two cores: ten minutes.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import multiprocessing

from benchmarks.data import tiny_imagenet
from benchmarks.end_to_end.natural_call_subjects import SUBJECTS
from benchmarks.runner.benchmark import Axis, Benchmark
from benchmarks.runner.page import Column, Line, Table, text
from benchmarks.runner.rows import Row
from prunerecover import Budget, Plan, plan_pruning
from prunerecover.cost.environment import device_name
from prunerecover.planning.planner import SAMPLES

BUDGETS, RANKS, BATCH, SEED = (0.2,), (1, 2), 16, 0


def digest(plan: Plan) -> str:
    """Return a hash of a plan and of all its values."""
    found = hashlib.sha256(json.dumps(plan.to_dict(), sort_keys=True).encode())
    for name in sorted(plan.tensors):
        found.update(plan.tensors[name].numpy().tobytes())
    return found.hexdigest()


def plan_on(rank: int, ranks: int, budget: float, folder: str) -> None:
    """Plan on a rank; the first writes the seconds and the hash of the plan.

    Args:
        rank: Number of the rank.
        ranks: Number of ranks.
        budget: Share of the MACs.
        folder: Folder where ranks meet.
    """
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    batches = torch.split(tiny_imagenet.training_images(SAMPLES)[0], BATCH)
    network = SUBJECTS["deit_tiny"].dense()
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=ranks)
    dist.barrier()
    started = time.perf_counter()
    plan = plan_pruning(network, Budget(macs=budget), batches=batches, seed=SEED)
    seconds = time.perf_counter() - started
    if rank == 0:
        (Path(folder) / "found.json").write_text(json.dumps({"seconds": seconds, "plan": digest(plan)}))
    dist.barrier()
    dist.destroy_process_group()


def measure(budget: float, ranks: int) -> dict[str, Any]:
    """Plan on some ranks."""
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(plan_on, args=(ranks, budget, folder), nprocs=ranks)  # type: ignore[no-untyped-call]
        found = json.loads((Path(folder) / "found.json").read_text())
    return {**found, "device": device_name(torch.device("cpu"))}


def alone(line: Line) -> Row:
    """Return the row of a single process."""
    return next(row for row in line.there if row["ranks"] == 1)


COLUMNS = [
    text("ranks"),
    Column("minutes", lambda line: f"{line.first['seconds'] / 60:.1f}"),
    Column("relative to a single process", lambda line: f"{line.first['seconds'] / alone(line)['seconds']:.1%}"),
    Column("same plan", lambda line: "yes" if line.first["plan"] == alone(line)["plan"] else "no"),
]

BENCHMARK = Benchmark(
    title="Planning on two ranks",
    text=f"""`plan_pruning` of DeiT-Tiny for a share of the MACs, with {SAMPLES} images, by a single process and by two
    ranks of torch.distributed (gloo) that share the scores, the fits and the tuning. One thread for each process, on a
    machine of two cores without other work. Same plan: all choices and all fitted values, bit for bit.""",
    measure=measure,
    axes={"budget": Axis(BUDGETS, open=True), "ranks": Axis(RANKS)},
    tables=(
        Table(
            COLUMNS,
            title="{budget:.0%} of the MACs",
            by=("budget",),
            line=("ranks",),
        ),
    ),
)

if __name__ == "__main__":
    BENCHMARK.main()
