"""The dense teacher: the network right before its first surgery, kept in a file since no checkpoint holds it."""

from __future__ import annotations

import copy
import hashlib
from pathlib import Path

import lightning.pytorch as pl
from safetensors.torch import load_file, save
from torch import nn

from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.callbacks.surgery.artifacts import artifact_folder
from prunerecover.checkpoint.ledger_record import TeacherFile
from prunerecover.checkpoint.pruned_folder import load_pruned
from prunerecover.files.atomic import atomic_file
from prunerecover.files.hashes import sha256_of
from prunerecover.model.checks import warn_unless_finite
from prunerecover.model.paths import get_module, unwrap
from prunerecover.recovery.lora import merge_adapters
from prunerecover.surgery.apply_edits import undo


def copy_dense(module: pl.LightningModule, target: str) -> nn.Module:
    """Return a frozen copy of the network with the structure before all surgery; pruned parts have stale values."""
    ledger = Ledger.of(module)
    network, journal = copy.deepcopy((unwrap(get_module(module, target)), ledger.journals.get(target)))
    if target in ledger.adapters:
        merge_adapters(network, ledger.adapters[target])
    if journal is not None:
        undo(network, journal)
    return freeze(network)


def freeze(network: nn.Module) -> nn.Module:
    """Put a teacher in evaluation mode, without gradients."""
    return network.eval().requires_grad_(False)


def save_teacher(trainer: pl.Trainer, network: nn.Module) -> TeacherFile | None:
    """Write the teacher's weights beside the checkpoints, once.

    Returns:
        The record for the ledger; None if the trainer writes no checkpoints.
    """
    folder = artifact_folder(trainer)
    if folder is None:
        return None
    record = _write(folder, network) if trainer.is_global_zero else None
    return trainer.strategy.broadcast(record)


def _write(folder: Path, network: nn.Module) -> TeacherFile:
    tensors = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in network.state_dict().items()}
    content = save(tensors)
    digest = hashlib.sha256(content).hexdigest()
    path = folder / f"teacher-{digest[:8]}.safetensors"
    warn_unless_finite(network, path)
    with atomic_file(path) as unfinished:
        unfinished.write_bytes(content)
    return TeacherFile(file=path.name, folder=str(folder.absolute()), sha256=digest)


def load_teacher(trainer: pl.Trainer, module: pl.LightningModule, target: str, record: TeacherFile) -> nn.Module:
    """Load the teacher named by the ledger from beside the resumed checkpoint, the new checkpoints or the first ones.

    Args:
        trainer: Trainer whose checkpoint folders are searched.
        module: LightningModule of the pruned network; the journal in its ledger gives the dense structure.
        target: Path of the network.
        record: Record returned by `save_teacher`: file name, folder and sha256.

    Raises:
        FileNotFoundError: If the file is in none of the folders.
        ValueError: If the file has another sha256.
    """
    new = artifact_folder(trainer)
    places = [Path(trainer.ckpt_path).parent if trainer.ckpt_path else None, new, Path(record.folder)]
    folders = list(dict.fromkeys(place for place in places if place is not None))
    there = [path for folder in folders if (path := folder / Path(record.file).name).is_file()]
    right = next((path for path in there if sha256_of(path) == record.sha256), None)
    if right is not None:
        network = copy_dense(module, target)
        network.load_state_dict(load_file(right))
        return network
    if there:
        raise ValueError(
            f"Expected the teacher that the run was started with at {there[0]}, but its sha256 differs. Copy the "
            "file again from where the run began, or pass DistillRecover(teacher=path)."
        )
    raise FileNotFoundError(
        f"Expected the dense teacher {record.file} in {' or '.join(map(str, folders))}, but it is not "
        "there. Copy it beside the checkpoint, or pass DistillRecover(teacher=path)."
    )


def open_teacher(module: pl.LightningModule, target: str, path: str | Path) -> nn.Module:
    """Load a teacher named by the user.

    Args:
        module: LightningModule of the network; a state dict is loaded into the network's dense structure.
        target: Path of the network.
        path: Folder written by `save_pruned`, or a .safetensors state dict of the dense network.
    """
    path = Path(path)
    if path.suffix == ".safetensors":
        network = copy_dense(module, target)
        network.load_state_dict(load_file(path))
        warn_unless_finite(network, path)
        return network
    return freeze(load_pruned(path))
