"""Kill and resume of a run with all callbacks at random moments, compared with an uninterrupted run.

    python -m benchmarks.end_to_end.kill_and_resume

A run is `fit` with Prune, DepthPrune (three surgeries), WidthPrune, LoRARecover, DistillRecover and PruneReport, a
checkpoint after every step and every epoch, with shuffling, augmentation and DropPath on. Kills are SIGKILL at a seeded
step: after a batch; after its checkpoint is written; with half a checkpoint at the final path (Lightning moves
checkpoints from a temporary folder, not atomically across file systems); during the planning of the next surgery; or
during the surgery. The next process takes the newest readable checkpoint, and continues the planning, joint or of
depth, from the store. At the end, all weights must be bitwise equal.
"""

from __future__ import annotations

import itertools
import multiprocessing
import random
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.end_to_end.killed_runs import (
    EPOCHS,
    JOINT,
    LONGEST,
    MOMENTS,
    NEAR_A_SURGERY,
    PLANNED,
    PLANNED_JOINT,
    STEPS_PER_EPOCH,
    SURGERIES,
    Process,
    newest,
    train,
)
from benchmarks.runner.benchmark import Axis, Benchmark
from benchmarks.runner.page import Table
from benchmarks.runner.rows import Row
from prunerecover.display.markdown import table


def start(process: Process) -> int:
    """Run `train` in a new process and return its exit code."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["lightning.pytorch", "timm", "prunerecover.callbacks", "sklearn.datasets"])
    started = context.Process(target=train, args=(process,))
    started.start()
    started.join()
    if started.exitcode not in (0, -signal.SIGKILL):
        raise RuntimeError(f"Expected a process that ends well or is killed, but it ended with {started.exitcode}.")
    return started.exitcode


def last_step(folder: Path) -> int:
    """Return the step of the newest readable checkpoint; 0 if there is none."""
    import torch

    path = newest(folder)
    return 0 if path is None else int(torch.load(path, map_location="cpu", weights_only=True)["global_step"])


def last_diary(folder: Path, begun: int) -> int:
    """Return the last step of the newest process, or `begun`, and empty the diary."""
    diary = folder / "steps.txt"
    steps = [int(line.split()[1]) for line in diary.read_text().splitlines()] if diary.exists() else []
    diary.unlink(missing_ok=True)
    return max(steps, default=begun)


def kill_until(folder: Path, kills: int, epochs: int, seed: int) -> list[dict[str, Any]]:
    """Start, kill and resume `kills` times, then run to the end; return the cost of each kill."""
    from prunerecover.store.search_store import results_in

    draw, in_turn = random.Random(seed), itertools.cycle(NEAR_A_SURGERY)
    record: list[dict[str, Any]] = []
    while len(record) < kills:
        begun = last_step(folder)
        left = epochs * STEPS_PER_EPOCH - begun
        longest = min(LONGEST, left - (kills - len(record)))  # a step is left for each kill to come
        near = next((epoch for epoch in SURGERIES if 0 <= epoch * STEPS_PER_EPOCH - begun < longest), None)
        lived = draw.randint(1, max(1, longest)) if near is None else longest
        moment = draw.choice(("batch", "saved", "saving")) if near is None else next(in_turn)
        planned = draw.randint(1, PLANNED_JOINT if near == JOINT else PLANNED)
        found = results_in(folder / "store")
        if start(Process(folder, epochs, lived, moment, planned)) == 0:
            raise RuntimeError("Expected a process that is killed before its end, but it ended.")
        died, kept, found = last_diary(folder, begun), last_step(folder), results_in(folder / "store") - found
        steps = {"resumed_at": begun, "killed_at": died, "kept": kept, "lost": died - kept}
        record.append({**steps, "moment": (folder / "died.txt").read_text(), "found": found})
    start(Process(folder, epochs))
    return record


def compare(killed: Path, whole: Path, epochs: int) -> dict[str, Any]:
    """Compare the weights and the surgeries in the last checkpoints of two runs."""
    import torch

    from prunerecover.checkpoint.ledger_record import KEY

    files = [newest(folder) for folder in (killed, whole)]
    assert None not in files, "a finished run has a checkpoint"
    first, second = (torch.load(path, map_location="cpu", weights_only=True) for path in files)
    assert first["global_step"] == second["global_step"] == epochs * STEPS_PER_EPOCH
    a, b = first["state_dict"], second["state_dict"]
    same = a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
    events = [
        [{name: value for name, value in event.items() if name != "seconds"} for event in checkpoint[KEY]["events"]]
        for checkpoint in (first, second)
    ]
    return {
        "bitwise_equal": same,
        "tensors": len(a),
        "same_surgeries": events[0] == events[1],
        "events": events[1],
    }


def measure(kills: int, epochs: int, seed: int) -> dict[str, Any]:
    """Run once without kills and once with kills to the end, and compare."""
    with tempfile.TemporaryDirectory() as folder:
        killed, whole = Path(folder, "killed"), Path(folder, "whole")
        for each in (killed, whole):
            each.mkdir()
        start(Process(whole, epochs))
        record = kill_until(killed, kills, epochs, seed)
        return {"kills_one_by_one": record, **compare(killed, whole, epochs)}


def about(rows: Sequence[Row]) -> str:
    """Return a description of the run, and a table of the kills."""
    (row,) = rows
    surgeries = "; ".join(f"epoch {event['epoch']}: {len(event['units'])} units" for event in row["events"])
    verdict = "are bit for bit those" if row["bitwise_equal"] and row["same_surgeries"] else "DIFFER from those"
    names = ("resumed_at", "killed_at", "kept", "lost", "found")
    kills = [
        (number, MOMENTS[kill["moment"]], *(kill.get(name, "") for name in names))
        for number, kill in enumerate(row["kills_one_by_one"], 1)
    ]
    head = ("kill", "moment", "resumed at step", "killed at step", "newest readable checkpoint", "steps lost")
    return (
        f"Digits, {row['epochs']} epochs of {STEPS_PER_EPOCH} steps, a checkpoint after each step. Surgeries: "
        f"{surgeries}. After the last resume all {row['tensors']} tensors {verdict} of a run that was left "
        f"alone.\n\n{table((*head, 'results of planning kept'), kills)}"
    )


BENCHMARK = Benchmark(
    title="Kills of pruning runs",
    text="""A run is killed by SIGKILL at seeded moments, resumed from the newest readable checkpoint until it is done,
    and compared with one that was left alone.""",
    measure=measure,
    axes={
        "kills": Axis((50,), "--kills", open=True),
        "epochs": Axis((EPOCHS,), "--epochs", open=True),
        "seed": Axis((0,), "--seed", open=True),
    },
    complete=False,
    threads=0,
    tables=(Table((), "{kills} kills of one run", by=("kills", "epochs", "seed"), text=about),),
)

if __name__ == "__main__":
    BENCHMARK.main()
