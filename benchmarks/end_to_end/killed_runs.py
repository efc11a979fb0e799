"""Run for `kill_and_resume`: a fit of all callbacks."""

from __future__ import annotations

import os
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EPOCHS, STEPS_PER_EPOCH = 28, 7
LONGEST = 6  # most steps of a process before the kill
MOMENTS = {
    "batch": "after a batch",
    "saved": "after its checkpoint",
    "saving": "half of a checkpoint written",
    "planning": "while a surgery is planned",
    "surgery": "in the middle of a surgery",
}
PLANNED, PLANNED_JOINT = 2, 24  # most planning results of a process before the kill
JOINT = 1  # epoch of the joint surgery
SURGERIES = (JOINT, 2, 4, 5, 6)  # epochs
NEAR_A_SURGERY = ("planning", "planning", "surgery", "saved")


def newest(folder: Path) -> Path | None:
    """Return the newest readable checkpoint; files cut off by a kill are passed over."""
    from prunerecover.checkpoint.lightning_file import read_checkpoint

    for path in sorted(folder.glob("*.ckpt"), key=lambda p: p.stat().st_mtime_ns, reverse=True):
        try:
            read_checkpoint(path)
        except ValueError:
            continue
        return path
    return None


@dataclass(frozen=True)
class Process:
    """Process of a run.

    Attributes:
        folder: Folder of the checkpoints.
        epochs: Epoch at which the run ends.
        kill_after: Steps until the kill, or until the kill at the next surgery; None: no kill.
        moment: Moment of the kill, among `MOMENTS`.
        planned: Largest number of stored planning results before the kill.
    """

    folder: Path
    epochs: int
    kill_after: int | None = None
    moment: str = "batch"
    planned: int = PLANNED


def train(process: Process) -> None:
    """Run or resume the fit in this process, up to the kill if any."""
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
    steps = ModelCheckpoint(process.folder, filename="{epoch}-{step}", save_top_k=-1, every_n_train_steps=1)
    each = ModelCheckpoint(process.folder, filename="{epoch}", save_top_k=-1)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(
        max_epochs=process.epochs,
        limit_train_batches=STEPS_PER_EPOCH,
        accelerator="cpu",
        default_root_dir=process.folder,
        callbacks=[*all_callbacks(process.folder / "store"), *diaries(process), steps, each],
        **quiet,
    )
    train_loader = ResumableLoader(torch.utils.data.Subset(data.datasets["train"], range(64 * STEPS_PER_EPOCH)), 64)
    trainer.fit(module, train_loader, data.val_dataloader(), ckpt_path=newest(process.folder))


def all_callbacks(store: Path) -> list[Any]:
    """Return the callbacks of the package, in an order with waits between all of them.

    Args:
        store: Folder of stored planning results.
    """
    from prunerecover import Budget, DepthPrune, DistillRecover, LoRARecover, Prune, PruneReport, WidthPrune

    return [
        LoRARecover(rank=4, dropout=0.1, start=3),
        Prune(Budget(macs=0.1), kinds=("mlp", "neuron"), schedule=JOINT, calibration=64, store=store),
        DepthPrune(remove={"attention": 1}, schedule=2, calibration=64, store=store),
        DepthPrune(remove={"activation": 2}, schedule={"start": 4, "every": 2, "step": 1}, calibration=64, store=store),
        WidthPrune(Budget(macs=0.2), schedule={"start": 5}, calibration=64),
        DistillRecover(features=True),
        PruneReport(pairs=3),
    ]


def diaries(process: Process) -> list[Any]:
    """Return callbacks to write down each step, and to end the process at the given moment."""
    import lightning.pytorch as pl

    from prunerecover.callbacks import pruning
    from prunerecover.store.search_store import SearchStore
    from prunerecover.width.allocator import WidthAllocator

    folder, kill_after, moment = process.folder, process.kill_after, process.moment

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

    def find_and_die(store: SearchStore, key: str, *found: Any) -> Any:
        keys.append(key)
        return die() if len(keys) > process.planned else find(store, key, *found)

    apply, find, keys = pruning.apply_in_trainer, SearchStore._found, list[str]()
    if moment == "surgery":
        pruning.apply_in_trainer = apply_and_die
    if moment == "planning":
        SearchStore._found, WidthAllocator.plan = find_and_die, die
    return [Diary()]
