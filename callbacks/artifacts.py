"""Where callbacks put files: beside the checkpoints."""

from __future__ import annotations

from pathlib import Path

import lightning.pytorch as pl
from lightning.pytorch.callbacks import ModelCheckpoint

from prunerecover.plan import Plan


def artifact_folder(trainer: pl.Trainer) -> Path | None:
    """Return the folder of the trainer's checkpoints; None if it writes none (no ModelCheckpoint, fast_dev_run)."""
    callback = trainer.checkpoint_callback
    if is_trial(trainer) or not isinstance(callback, ModelCheckpoint) or callback.dirpath is None:
        return None
    return Path(callback.dirpath)


def is_trial(trainer: pl.Trainer) -> bool:
    """Whether this is a `fast_dev_run`, which leaves no files."""
    return bool(trainer.fast_dev_run)  # type: ignore[attr-defined]


def save_plan(folder: Path, name: str, plan: Plan) -> None:
    """Write all edits so far of one network as plan.json (plan-<name>.json), for strategies that must know them early.

    Checkpoints do not hold fitted tensors of their own: after a resume, those of earlier surgeries come from the file
    that is there.
    """
    path = folder / (f"plan-{name}.json" if name else "plan.json")
    missing = set(plan.needed_tensors) - set(plan.tensors)
    if missing and path.is_file():
        earlier = Plan.load(path)
        if earlier.edits == plan.edits[: len(earlier.edits)] and earlier.source.weights == plan.source.weights:
            plan = plan.with_tensors({**earlier.tensors, **plan.tensors})
    plan.save(path)
