"""Files that callbacks write beside the checkpoints."""

from __future__ import annotations

import itertools
from pathlib import Path

import lightning.pytorch as pl
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities import rank_zero_warn

from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.checkpoint.pruned_folder import save_pruned
from prunerecover.plan.plan import Plan
from prunerecover.surgery.merging import merge


def artifact_folder(trainer: pl.Trainer) -> Path | None:
    """Return the folder of the trainer's checkpoints; None if it writes none (no ModelCheckpoint, fast_dev_run)."""
    callback = trainer.checkpoint_callback
    if is_dry_run(trainer) or not isinstance(callback, ModelCheckpoint) or callback.dirpath is None:
        return None
    return Path(callback.dirpath)


def is_dry_run(trainer: pl.Trainer) -> bool:
    """Whether this is a `fast_dev_run`, which leaves no files."""
    return bool(trainer.fast_dev_run)  # type: ignore[attr-defined]


def save_plan(folder: Path, name: str, plan: Plan) -> None:
    """Write all edits so far of one network, for strategies that must know them early.

    Checkpoints do not hold fitted tensors of their own: after a resume, those of earlier surgeries come from the file
    that is there.

    Args:
        folder: Of the checkpoints.
        name: The file is plan-<name>.json; if empty, plan.json.
        plan: With all edits so far.
    """
    path = folder / (f"plan-{name}.json" if name else "plan.json")
    missing = set(plan.needed_tensors) - set(plan.tensors)
    if missing and path.is_file():
        earlier = Plan.load(path)
        if earlier.edits == plan.edits[: len(earlier.edits)] and earlier.source.weights == plan.source.weights:
            plan = plan.with_tensors({**earlier.tensors, **plan.tensors})
    plan.save(path)


def save_merged(module: pl.LightningModule, folder: Path) -> None:
    """Write a merged copy of each pruned or adapted network as pruned/ (pruned/<its path>, if there are several).

    Adapters are merged first, then linears merge. Where somebody else's files are in the way, the name gets a number: a
    fit must not fail at its end.
    """
    ledger = Ledger.of(module)
    plans = dict.fromkeys(ledger.adapters, Plan()) | {t: plan for t, plan in ledger.plans.items() if plan.edits}
    for target, plan in plans.items():
        network = ledger.plain_copy(module, target)
        path = folder / ("pruned" if len(plans) == 1 else f"pruned/{target}")
        composed = plan + merge(network)
        try:
            save_pruned(network, composed, path)
        except FileExistsError as error:
            other = next(p for i in itertools.count(1) if not (p := path.with_name(f"{path.name}-v{i}")).exists())
            rank_zero_warn(f"{error} The merged copy of this fit is at {save_pruned(network, composed, other)}.")
