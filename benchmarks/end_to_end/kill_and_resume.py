"""Kill a run of all callbacks at random moments, resume it until it is done, and compare it with one left alone.

    python -m benchmarks.end_to_end.kill_and_resume

A run is `fit` with Prune, DepthPrune (three surgeries), WidthPrune, LoRARecover, DistillRecover and PruneReport, a
checkpoint after every step and every epoch, with shuffling, augmentation and DropPath on. Kills are SIGKILL at a seeded
step: after a batch, once its checkpoint is written, with half of a checkpoint written where the whole one belongs
(Lightning moves it there from a temporary folder: no single operation if that is on another file system), while the
next surgery is planned, or in the middle of it. The next process takes the newest checkpoint that can be read, and goes
on with the planning, joint or of depth, where the store ends. In the end all weights must be the same, bit for bit.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import random
import shutil
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

EPOCHS, STEPS_PER_EPOCH = 28, 7
LONGEST = 6  # steps that a process lives at most before it is killed
MOMENTS = {
    "batch": "after a batch",
    "saved": "after its checkpoint",
    "saving": "half of a checkpoint written",
    "planning": "while a surgery is planned",
    "surgery": "in the middle of a surgery",
}
PLANNED, PLANNED_JOINT = 2, 24  # results of a planning that a process finds at most before it is killed
JOINT = 1  # epoch of the joint surgery
SURGERIES = (JOINT, 2, 4, 5, 6)  # epochs
NEAR_A_SURGERY = ("planning", "planning", "surgery", "saved")  # in turn


def newest(folder: Path) -> Path | None:
    """Return the newest checkpoint that can be read; one that a kill cut off is passed over."""
    from prunerecover.checkpoint.lightning_file import read_checkpoint

    for path in sorted(folder.glob("*.ckpt"), key=lambda p: p.stat().st_mtime_ns, reverse=True):
        try:
            read_checkpoint(path)
        except ValueError:
            continue
        return path
    return None


def train(
    folder: Path, epochs: int, kill_after: int | None = None, moment: str = "batch", planned: int = PLANNED
) -> None:
    """Run or resume the fit in this process; `kill_after` that many steps, or at the next surgery, it is no more."""
    import lightning.pytorch as pl
    import torch
    from lightning.pytorch.callbacks import ModelCheckpoint

    from benchmarks.end_to_end.resumable import ResumableLoader
    from prunerecover.recipes.data.digits import DigitsData
    from prunerecover.recipes.tasks.digits_classifier import vit_kwargs
    from prunerecover.recipes.tasks.image_classifier import ImageClassifier

    torch.set_num_threads(1)
    pl.seed_everything(0, verbose=False)
    data = DigitsData(batch_size=64, shift=1)
    data.setup()
    model_kwargs = {**vit_kwargs(depth=4, embed_dim=32, num_heads=4), "drop_path_rate": 0.1}
    module = ImageClassifier("vit_tiny_patch16_224", num_classes=10, model_kwargs=model_kwargs)
    steps = ModelCheckpoint(folder, filename="{epoch}-{step}", save_top_k=-1, every_n_train_steps=1)
    each = ModelCheckpoint(folder, filename="{epoch}", save_top_k=-1)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(
        max_epochs=epochs,
        limit_train_batches=STEPS_PER_EPOCH,
        accelerator="cpu",
        default_root_dir=folder,
        callbacks=[*all_callbacks(folder / "store"), *diaries(folder, kill_after, moment, planned), steps, each],
        **quiet,
    )
    train_loader = ResumableLoader(torch.utils.data.Subset(data.datasets["train"], range(64 * STEPS_PER_EPOCH)), 64)
    trainer.fit(module, train_loader, data.val_dataloader(), ckpt_path=newest(folder))


def all_callbacks(store: Path) -> list[Any]:
    """Return the callbacks of the package, in an order in which each has to wait for another.

    Args:
        store: Folder of what planning has found.
    """
    from prunerecover import Budget, DepthPrune, DistillRecover, LoRARecover, Prune, PruneReport, WidthPrune

    gradual = {"start": 2, "every": 2, "step": 1, "alternate": True}
    return [
        LoRARecover(rank=4, dropout=0.1, start=3),
        Prune(Budget(macs=0.1), kinds=("mlp", "neuron"), schedule=JOINT, calibration=64, store=store),
        DepthPrune(remove={"attention": 1, "activation": 2}, schedule=gradual, calibration=64, store=store),
        WidthPrune(Budget(macs=0.2), schedule={"start": 5}, calibration=64),
        DistillRecover(features=True),
        PruneReport(pairs=3),
    ]


def diaries(folder: Path, kill_after: int | None, moment: str, planned: int) -> list[Any]:
    """Return the callbacks that write down each step, and end the process at its moment."""
    import lightning.pytorch as pl

    from prunerecover.callbacks import pruning
    from prunerecover.store.search_store import SearchStore
    from prunerecover.width.planner import WidthPlanner

    def die(*args: Any, at: str = moment, **kwargs: Any) -> None:
        (folder / "died.txt").write_text(at)
        os.kill(os.getpid(), signal.SIGKILL)

    def half_a_move(source: str, target: str, *args: Any) -> None:
        content = Path(source).read_bytes()
        Path(target).write_bytes(content[: len(content) // 2])
        die()

    class Diary(pl.Callback):
        lived = 0

        def on_train_batch_start(self, trainer: pl.Trainer, *args: Any) -> None:
            if self.lived == kill_after:
                die(at="saved")

        def on_train_batch_end(self, trainer: pl.Trainer, *args: Any) -> None:
            with (folder / "steps.txt").open("a") as diary:
                diary.write(f"{os.getpid()} {trainer.global_step}\n")
            self.lived += 1
            if self.lived == kill_after and moment == "batch":
                die()
            if self.lived == kill_after and moment == "saving":
                shutil.move = half_a_move

    def apply_and_die(*args: Any) -> None:
        apply(*args)
        die()

    def find_and_die(store: SearchStore, key: str, compute: Callable[[], Any]) -> Any:
        keys.append(key)
        return die() if len(keys) > planned else find(store, key, compute)

    apply, find, keys = pruning.apply_in_trainer, SearchStore._found, list[str]()
    if moment == "surgery":
        pruning.apply_in_trainer = apply_and_die
    if moment == "planning":
        SearchStore._found, WidthPlanner.plan = find_and_die, die
    return [Diary()]


def start(
    folder: Path, epochs: int, kill_after: int | None = None, moment: str = "batch", planned: int = PLANNED
) -> int:
    """Run `train` in a new process and return how it ended."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["lightning.pytorch", "timm", "prunerecover.callbacks", "sklearn.datasets"])
    process = context.Process(target=train, args=(folder, epochs, kill_after, moment, planned))
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


def kill_until(folder: Path, kills: int, epochs: int, seed: int) -> list[dict[str, Any]]:
    """Start, kill and resume until `kills` kills are done, then let it finish; return what each kill cost."""
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
        if start(folder, epochs, lived, moment, planned) == 0:
            raise RuntimeError("Expected a process that is killed before its end, but it ended.")
        died, kept, found = last_diary(folder, begun), last_step(folder), results_in(folder / "store") - found
        steps = {"resumed_at": begun, "killed_at": died, "kept": kept, "lost": died - kept}
        record.append({**steps, "moment": (folder / "died.txt").read_text(), "found": found})
    start(folder, epochs)
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
    return {"bitwise_equal": same, "tensors": len(a), "same_surgeries": events[0] == events[1], "events": events[1]}


def experiment(folder: Path, kills: int, epochs: int, seed: int) -> dict[str, Any]:
    """Run both and compare them."""
    killed, whole = folder / "killed", folder / "whole"
    for each in (killed, whole):
        each.mkdir(parents=True)
    start(whole, epochs)
    record = kill_until(killed, kills, epochs, seed)
    return {
        "seed": seed,
        "epochs": epochs,
        "steps_per_epoch": STEPS_PER_EPOCH,
        "kills": record,
        **compare(killed, whole, epochs),
    }


def markdown(result: dict[str, Any]) -> str:
    """Render the result."""
    surgeries = "; ".join(f"epoch {event['epoch']}: {len(event['units'])} units" for event in result["events"])
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
        "`python -m benchmarks.end_to_end.kill_and_resume`",
        "",
        f"Digits, {result['epochs']} epochs of {result['steps_per_epoch']} steps, a checkpoint after each step. "
        f"Surgeries: {surgeries}. After the last resume all {result['tensors']} tensors {verdict} of a run that was "
        "left alone.",
        "",
        table(columns, kills),
    ]
    return "\n".join(lines)


def main() -> None:
    """Train, or run the experiment and write its result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--result", type=Path, help="write JSON here instead of docs/results")
    parser.add_argument("--folder", type=Path, help="where the runs go; default: a temporary folder")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        result = experiment(given.folder or Path(temporary), given.kills, given.epochs, given.seed)
    if given.result:
        given.result.write_text(json.dumps(result))
        return
    from benchmarks.data.real import write

    write("kill_and_resume", result, markdown(result))


if __name__ == "__main__":
    main()
