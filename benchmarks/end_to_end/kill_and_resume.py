"""Kill a run of all callbacks at random moments, resume it until it is done, and compare it with one left alone.

    python -m benchmarks.end_to_end.kill_and_resume
    python -m benchmarks.end_to_end.kill_and_resume --run quality --kills 20

A run is `fit` with Prune, DepthPrune (three surgeries), WidthPrune, LoRARecover, DistillRecover and PruneReport, a
checkpoint after every step and every epoch, with shuffling, augmentation and DropPath on. Kills are SIGKILL at a seeded
step: after a batch, once its checkpoint is written, with half of a checkpoint written where the whole one belongs
(Lightning moves it there from a temporary folder: no single operation if that is on another file system), while the
next surgery is planned, or in the middle of it. The next process takes the newest checkpoint that can be read, and goes
on with the planning, joint or of depth, where the store ends. In the end all weights must be the same, bit for bit.
With `--run quality` the network is pruned in width, in steps until the validation loss rises, and kills come in the
middle of taking a step back, too.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import random
import signal
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.end_to_end.killed_runs import (
    EPOCHS,
    JOINT,
    LONGEST,
    MOMENTS,
    NEAR_A_SURGERY,
    PAGES,
    PLANNED,
    PLANNED_JOINT,
    RUNS,
    STEPS_PER_EPOCH,
    SURGERIES,
    UNDISTURBED,
    newest,
    train,
)


def start(
    folder: Path,
    run: str,
    epochs: int,
    kill_after: int | None = None,
    moment: str = "batch",
    planned: int = PLANNED,
) -> int:
    """Run `train` in a new process and return how it ended."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["lightning.pytorch", "timm", "prunerecover.callbacks", "sklearn.datasets"])
    process = context.Process(target=train, args=(folder, run, epochs, kill_after, moment, planned))
    process.start()
    process.join()
    if process.exitcode not in (0, -signal.SIGKILL):
        raise RuntimeError(f"Expected a process that ends well or is killed, but it ended with {process.exitcode}.")
    return process.exitcode


def last_step(folder: Path) -> int:
    """Return the step of the newest readable checkpoint; 0 if there is none."""
    import torch

    path = newest(folder)
    return 0 if path is None else int(torch.load(path, map_location="cpu", weights_only=True)["global_step"])


def last_diary(folder: Path, begun: int) -> int:
    """Return the last step that the newest process did; `begun` if none, and empty the diary."""
    diary = folder / "steps.txt"
    steps = [int(line.split()[1]) for line in diary.read_text().splitlines()] if diary.exists() else []
    diary.unlink(missing_ok=True)
    return max(steps, default=begun)


def kill_until(folder: Path, run: str, kills: int, epochs: int, seed: int) -> list[dict[str, Any]]:
    """Start, kill and resume until `kills` kills are done, then let it finish; return what each kill cost."""
    from prunerecover.store.search_store import results_in

    draw, in_turn = random.Random(seed), itertools.cycle(NEAR_A_SURGERY[run])
    record: list[dict[str, Any]] = []
    while len(record) < kills:
        begun = last_step(folder)
        left = epochs * STEPS_PER_EPOCH - begun
        longest = min(LONGEST, left - (kills - len(record)))  # a step is left for each kill to come
        near = next((epoch for epoch in SURGERIES[run] if 0 <= epoch * STEPS_PER_EPOCH - begun < longest), None)
        lived = draw.randint(1, max(1, longest)) if near is None else longest
        if not begun:
            lived = max(lived, UNDISTURBED[run])
        moment = draw.choice(("batch", "saved", "saving")) if near is None else next(in_turn)
        planned = draw.randint(1, PLANNED_JOINT if near == JOINT else PLANNED)
        found = results_in(folder / "store")
        if start(folder, run, epochs, lived, moment, planned) == 0:
            raise RuntimeError("Expected a process that is killed before its end, but it ended.")
        died, kept, found = last_diary(folder, begun), last_step(folder), results_in(folder / "store") - found
        steps = {"resumed_at": begun, "killed_at": died, "kept": kept, "lost": died - kept}
        record.append({**steps, "moment": (folder / "died.txt").read_text(), "found": found})
    start(folder, run, epochs)
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
    trails = [checkpoint[KEY].get("quality", {}) for checkpoint in (first, second)]
    (trail,) = trails[1].values() or ({},)
    return {
        "bitwise_equal": same,
        "tensors": len(a),
        "same_surgeries": events[0] == events[1] and trails[0] == trails[1],
        "events": events[1],
        "steps": trail.get("steps", []),
    }


def experiment(folder: Path, run: str, kills: int, epochs: int, seed: int) -> dict[str, Any]:
    """Run both and compare them."""
    killed, whole = folder / "killed", folder / "whole"
    for each in (killed, whole):
        each.mkdir(parents=True)
    start(whole, run, epochs)
    record = kill_until(killed, run, kills, epochs, seed)
    return {
        "run": run,
        "seed": seed,
        "epochs": epochs,
        "steps_per_epoch": STEPS_PER_EPOCH,
        "kills": record,
        **compare(killed, whole, epochs),
    }


def markdown(result: dict[str, Any]) -> str:
    """Render the result."""
    surgeries = "; ".join(f"epoch {event['epoch']}: {len(event['units'])} units" for event in result["events"])
    judged = [f"epoch {step['epoch']} {'kept' if step['kept'] else 'taken back'}" for step in result.get("steps", ())]
    steps = f" Steps: {', '.join(judged)}." if judged else ""
    option = "" if result.get("run", "budgets") == "budgets" else f" --run {result['run']}"
    verdict = "are bit for bit those" if result["bitwise_equal"] and result["same_surgeries"] else "DIFFER from those"
    from prunerecover.display.markdown import table

    counts = ("resumed_at", "killed_at", "kept", "lost", "found")
    kills = [
        (number, MOMENTS[kill["moment"]], *(kill[name] for name in counts))
        for number, kill in enumerate(result["kills"], 1)
    ]
    columns = ("kill", "moment", "resumed at step", "killed at step", "newest readable checkpoint", "steps lost")
    columns += ("results of planning kept",)
    lines = [
        f"# {len(result['kills'])} kills of one pruning run",
        "",
        f"`python -m benchmarks.end_to_end.kill_and_resume{option}`",
        "",
        f"Digits, {result['epochs']} epochs of {result['steps_per_epoch']} steps, a checkpoint after each step. "
        f"Surgeries: {surgeries}.{steps} After the last resume all {result['tensors']} tensors {verdict} of a run that "
        "was left alone.",
        "",
        table(columns, kills),
    ]
    return "\n".join(lines)


def main() -> None:
    """Train, or run the experiment and write its result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", choices=list(RUNS), default="budgets")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--result", type=Path, help="write JSON here instead of docs/results")
    parser.add_argument("--folder", type=Path, help="where the runs go; default: a temporary folder")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        result = experiment(given.folder or Path(temporary), given.run, given.kills, given.epochs, given.seed)
    if given.result:
        given.result.write_text(json.dumps(result))
        return
    from benchmarks.data.real import write

    write(PAGES[given.run], result, markdown(result))


if __name__ == "__main__":
    main()
