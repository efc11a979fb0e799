"""Kill a pruning run at random moments, resume it until it is done, and compare it with one that was left alone.

    python -m benchmarks.end_to_end.kill_and_resume

A run is `fit` with DepthPrune (three surgeries), DistillRecover and a checkpoint per epoch, with shuffling,
augmentation and DropPath on. Kills are SIGKILL, at a seeded step, either after a batch or with half of a checkpoint
written where the whole one belongs (Lightning moves it there from a temporary folder: no single operation if that is on
another file system). The next process takes the newest checkpoint that can be read. In the end all weights must be the
same, bit for bit.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
EPOCHS, STEPS_PER_EPOCH = 10, 7
LONGEST = 12  # steps that a process lives at most before it is killed: under two epochs
SCHEDULE = {"start": 2, "every": 1, "step": 1, "alternate": True}
PRUNE = {"remove": {"attention": 1, "activation": 2}, "schedule": SCHEDULE}


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


def train(folder: Path, epochs: int, kill_after: int | None, moment: str) -> None:
    """Run or resume the fit in this process; `kill_after` that many steps it is no more."""
    import lightning.pytorch as pl
    import torch
    from lightning.pytorch.callbacks import ModelCheckpoint

    from prunerecover import DepthPrune, DistillRecover
    from prunerecover.recipes.data.digits import DigitsData
    from prunerecover.recipes.tasks.digits_classifier import vit_kwargs
    from prunerecover.recipes.tasks.image_classifier import ImageClassifier

    class Diary(pl.Callback):
        """Writes down each step, and dies."""

        lived = 0

        def on_train_batch_end(self, trainer: pl.Trainer, *args: Any) -> None:
            with (folder / "steps.txt").open("a") as diary:
                diary.write(f"{os.getpid()} {trainer.global_step}\n")
            self.lived += 1
            if self.lived == kill_after and moment == "batch":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.lived == kill_after and moment == "saving":
                shutil.move = half_a_move

    def half_a_move(source: str, target: str, *args: Any) -> None:
        content = Path(source).read_bytes()
        Path(target).write_bytes(content[: len(content) // 2])
        Path(source).unlink()
        os.kill(os.getpid(), signal.SIGKILL)

    torch.set_num_threads(1)
    pl.seed_everything(0, verbose=False)
    model_kwargs = {**vit_kwargs(depth=4, embed_dim=32, num_heads=4), "drop_path_rate": 0.1}
    module = ImageClassifier("vit_tiny_patch16_224", num_classes=10, model_kwargs=model_kwargs)
    every = ModelCheckpoint(folder, filename="{epoch}", save_top_k=-1)
    trainer = pl.Trainer(
        max_epochs=epochs,
        limit_train_batches=STEPS_PER_EPOCH,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[DepthPrune(**PRUNE, calibration=64, merge="never"), DistillRecover(), every, Diary()],
    )
    trainer.fit(module, DigitsData(batch_size=64, shift=1), ckpt_path=newest(folder))


def start(folder: Path, epochs: int, kill_after: int | None = None, moment: str = "batch") -> int:
    """Run `train` in a new process and return how it ended."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.end_to_end.kill_and_resume",
        "--folder",
        str(folder),
        "--epochs",
        str(epochs),
        "--moment",
        moment,
        "--train",
    ]
    command += [] if kill_after is None else ["--kill-after", str(kill_after)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode not in (0, -signal.SIGKILL):
        raise RuntimeError(f"Expected a training process that ends well or is killed, but it failed:\n{done.stderr}")
    return done.returncode


def last_step(folder: Path) -> int:
    """Return the step of the newest readable checkpoint; 0 if there is none."""
    import torch

    path = newest(folder)
    return 0 if path is None else int(torch.load(path, map_location="cpu", weights_only=True)["global_step"])


def kill_until(folder: Path, kills: int, epochs: int, seed: int) -> list[dict[str, Any]]:
    """Start, kill and resume until `kills` kills are done, then let it finish; return what each kill cost."""
    draw = random.Random(seed)
    record: list[dict[str, Any]] = []
    while len(record) < kills:
        begun = last_step(folder)
        left = epochs * STEPS_PER_EPOCH - begun
        lived, moment = draw.randint(1, min(LONGEST, left - 1)), draw.choice(("batch", "batch", "saving"))
        if start(folder, epochs, lived, moment) == 0:
            raise RuntimeError("Expected a process that is killed before its end, but it ended.")
        steps = [line.split() for line in (folder / "steps.txt").read_text().splitlines()]
        died = max(int(step) for process, step in steps if process == steps[-1][0])
        kept = last_step(folder)
        record.append({"resumed_at": begun, "killed_at": died, "moment": moment, "kept": kept, "lost": died - kept})
    start(folder, epochs)
    return record


def compare(killed: Path, whole: Path, epochs: int) -> dict[str, Any]:
    """Compare the weights and the surgeries in the last checkpoints of two runs."""
    import torch

    from prunerecover.checkpoint.ledger_record import KEY

    names = [f"epoch={epochs - 1}.ckpt", f"epoch={epochs - 1}-v1.ckpt"]  # a file cut off by a kill keeps its name
    files = [newest(folder) for folder in (killed, whole)]
    assert all(path is not None and path.name in names for path in files), files
    first, second = (torch.load(path, map_location="cpu", weights_only=True) for path in files)
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
    surgeries = "; ".join(f"epoch {event['epoch']}: {', '.join(event['units'])}" for event in result["events"])
    verdict = "are bit for bit those" if result["bitwise_equal"] and result["same_surgeries"] else "DIFFER from those"
    from prunerecover.display.markdown import table

    moments = {"batch": "after a batch", "saving": "half of a checkpoint written"}
    kills = [
        (number, moments[kill["moment"]], kill["resumed_at"], kill["killed_at"], kill["kept"], kill["lost"])
        for number, kill in enumerate(result["kills"], 1)
    ]
    columns = ("kill", "moment", "resumed at step", "killed at step", "newest readable checkpoint", "steps lost")
    lines = [
        f"# {len(result['kills'])} kills of one pruning run",
        "",
        "`python -m benchmarks.end_to_end.kill_and_resume`",
        "",
        f"Digits, {result['epochs']} epochs of {result['steps_per_epoch']} steps, a checkpoint at the end of each. "
        f"Surgeries: {surgeries}. After the last resume all {result['tensors']} tensors {verdict} of a run that was "
        "left alone.",
        "",
        table(columns, kills),
    ]
    return "\n".join(lines)


def main() -> None:
    """Train, or run the experiment and write its result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--result", type=Path, help="write JSON here instead of docs/results")
    parser.add_argument("--folder", type=Path, help="where the runs go; default: a temporary folder")
    parser.add_argument("--train", action="store_true", help="be the training process")
    parser.add_argument("--kill-after", type=int)
    parser.add_argument("--moment", choices=("batch", "saving"), default="batch")
    given = parser.parse_args()
    if given.train:
        train(given.folder, given.epochs, given.kill_after, given.moment)
        return
    with tempfile.TemporaryDirectory() as temporary:
        result = experiment(given.folder or Path(temporary), given.kills, given.epochs, given.seed)
    if given.result:
        given.result.write_text(json.dumps(result))
        return
    from benchmarks.data.real import write

    write("kill_and_resume", result, markdown(result))


if __name__ == "__main__":
    main()
