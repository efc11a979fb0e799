"""Files written by callbacks beside the checkpoints."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import lightning.pytorch as pl
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from prunerecover.callbacks.ledger.averaged_copies import averaged_copies
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.checkpoint.pruned_folder import PLAN, write_folder
from prunerecover.files.plan_file import Saved, read_data, read_saved, write_plan
from prunerecover.model.checks import warn_unless_finite
from prunerecover.plan.plan import Plan
from prunerecover.routing.routed_folder import ROUTING, run_of_routed
from prunerecover.surgery.merging import merge


def artifact_folder(trainer: pl.Trainer) -> Path | None:
    """Return the folder of the trainer's checkpoints; None without checkpoints (no ModelCheckpoint, fast_dev_run)."""
    callback = trainer.checkpoint_callback
    if is_dry_run(trainer) or not isinstance(callback, ModelCheckpoint) or callback.dirpath is None:
        return None
    return Path(callback.dirpath)


def is_dry_run(trainer: pl.Trainer) -> bool:
    """Whether the run is a `fast_dev_run`, which leaves no files."""
    return bool(trainer.fast_dev_run)  # type: ignore[attr-defined]


def save_plan(folder: Path, ledger: Ledger, target: str) -> None:
    """Write all edits so far of one network, for strategies that need the edits early; see `own_place`.

    Checkpoints do not hold fitted tensors of their own: after a resume, tensors of earlier surgeries come from the
    existing file. A file with the same content, the user's own plan for example, stays unchanged.

    Args:
        folder: Folder of the checkpoints.
        ledger: Ledger of the run.
        target: Path of the network; with several networks the file is plan-<target>.json, else plan.json.
    """
    first = folder / (f"plan-{target}.json" if len(ledger.plans) > 1 else "plan.json")
    plan, written = ledger.plans[target], _plans_at(first)
    for earlier in written:
        shared = min(len(earlier.edits), len(plan.edits))  # the plan is shorter after an undone step
        if earlier.edits[:shared] == plan.edits[:shared] and earlier.source.weights == plan.source.weights:
            tensors = {**earlier.tensors, **plan.tensors}
            plan = plan.with_tensors({key: tensors[key] for key in plan.needed_tensors if key in tensors})
    if plan not in written:
        run = run_of(ledger, target)
        warn_unless_finite(plan.tensors, first)
        write_plan(own_place(first, run, "plan"), plan.to_dict(), plan.tensors, Saved(run=run))


def save_as_best(trainer: pl.Trainer) -> None:
    """Save the network restored at the end of a fit, and make "best" mean the new file: other files hold undone steps.

    Args:
        trainer: Trainer at the end of training; no effect without checkpoints.
    """
    folder = artifact_folder(trainer)
    if folder is None:
        return
    path = trainer.strategy.broadcast(next(p for p in _versions(folder / "kept.ckpt") if not p.exists()))
    trainer.save_checkpoint(path)
    for callback in trainer.checkpoint_callbacks:
        if isinstance(callback, ModelCheckpoint):
            callback.best_model_path = str(path)


def save_merged(module: pl.LightningModule, folder: Path) -> None:
    """Write a merged copy of each pruned or adapted network as pruned/ (pruned/<path> for several networks).

    Adapters are merged first, then linears merge. If foreign files are in the way, the name gets a number: a fit must
    not fail at its end.
    """
    ledger = Ledger.of(module)
    plans = dict.fromkeys(ledger.adapters, Plan()) | {t: plan for t, plan in ledger.plans.items() if plan.edits}
    for target, plan in plans.items():
        run = run_of(ledger, target)
        path = place_at_end(module, folder / ("pruned" if len(plans) == 1 else f"pruned/{target}"), run, "merged copy")
        if path is None:
            continue
        network = ledger.plain_copy(module, target)
        composed = plan + merge(network)
        try:
            written = write_folder(network, composed, path, run)
        except FileExistsError as error:
            written = write_folder(network, composed, next(filter(_is_free, _versions(path))), run)
            rank_zero_warn(f"{error} The merged copy of this fit is at {written}.")
        rank_zero_info(f"prunerecover: pruned network written to {written}; load_pruned opens it")


def place_at_end(module: pl.LightningModule, path: Path, run: str, what: str) -> Path | None:
    """Return the place of a file at the end of a fit; None if the existing file stays.

    A fit begun again from its final checkpoint has no training left, and the module may differ from the module behind
    the files: averaged weights replace the module's own only at the end of training, and the end is not repeated. A
    file missing after a kill is written if no callback averages.

    Args:
        module: LightningModule of the fit.
        path: Folder to write.
        run: Mark of the run, see `own_place`.
        what: Name of the folder in messages, see `own_place`.
    """
    place = own_place(path, run, what)
    if Ledger.of(module).has_trained or (_is_free(place) and not averaged_copies(module)):
        return place
    rank_zero_info(
        f"prunerecover: nothing was left to train, so the {what} at {place} is left as it is. load_pruned opens the "
        "checkpoint itself."
    )
    return None


def own_place(path: Path, run: str, what: str) -> Path:
    """Return the place for the files of a run: `path`, or a numbered version if `path` holds files of another writer.

    Args:
        path: Path of a plan file, or of a folder of `save_pruned` or `save_routed`.
        run: Mark of the run; a resumed run finds its own files by the mark.
        what: Name of the files, for the warning.
    """
    place = next(place for place in _versions(path) if _is_free(place) or _writer_of(place) == run)
    if place != path and _is_free(place):
        rank_zero_warn(
            f"Expected nothing at {path}, or the {what} of this run, but got what another run or somebody else has put "
            f"there. It stays; the {what} of this run is at {place}. Give each run a ModelCheckpoint(dirpath=...) of "
            "its own."
        )
    return place


def run_of(ledger: Ledger, target: str) -> str:
    """Return the mark of a run in files about the network at `target`."""
    return f"{ledger.run}/{target}"


def _versions(path: Path) -> Iterator[Path]:
    """Yield a path, and further versions, named as ModelCheckpoint names versions."""
    yield path
    end = path.suffix if path.suffix in (".json", ".ckpt") else ""
    for number in itertools.count(1):
        yield path.with_name(f"{path.name.removesuffix(end)}-v{number}{end}")


def _is_free(path: Path) -> bool:
    return not path.exists() or (path.is_dir() and not any(path.iterdir()))


def _writer_of(path: Path) -> str:
    """Return the mark of the run that wrote a plan file or a folder; empty if unmarked or unreadable."""
    if (path / ROUTING).is_file():
        return run_of_routed(path)
    try:
        return read_saved(read_data(path / PLAN if path.is_dir() else path)).run
    except (OSError, ValueError):
        return ""


def _plans_at(path: Path) -> list[Plan]:
    """Return the plan at a path, and all numbered versions; an unreadable file is not needed, and left alone."""
    found: list[Plan] = []
    for place in itertools.takewhile(Path.is_file, _versions(path)):
        try:
            found.append(Plan.load(place))
        except (OSError, ValueError) as error:
            rank_zero_warn(f"{place} is not needed, since the checkpoint holds its edits, and is left alone. {error}")
    return found
