"""Checkpoint folders of transformers' Trainer: what was pruned lies beside the weights, in a file of its own.

The file holds what a checkpoint of Lightning holds besides its weights, under the same keys. Weights have the names of
the model that the Trainer trains, which is the child "model" in the ledger.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from prunerecover.files.atomic import atomic_file

BESIDE = "prunerecover.pt"
MODEL = "model"
TIED = "tied"
Value = TypeVar("Value")


def is_of_trainer(path: Path) -> bool:
    """Whether this is a folder that a Trainer of transformers with our callbacks wrote."""
    return (path / BESIDE).is_file()


def write_beside(folder: Path, model: nn.Module, held: dict[str, Any]) -> None:
    """Write what a checkpoint of Lightning would hold beside its weights.

    Args:
        folder: Folder of the weights, which may not be there yet.
        model: Model of the Trainer, which saves tensors with several names once.
        held: Primitives and tensors.
    """
    names: dict[int, list[str]] = {}
    for name, value in model.state_dict(keep_vars=True).items():
        names.setdefault(id(value), []).append(name)
    tied = [alike for alike in names.values() if len(alike) > 1]
    with atomic_file(folder / BESIDE) as unfinished:
        torch.save({**held, TIED: tied}, unfinished)


def read_beside(folder: Path) -> dict[str, Any]:
    """Return what `write_beside` has written; nothing of a folder without it.

    Raises:
        ValueError: If it cannot be read.
    """
    path = folder / BESIDE
    if not path.is_file():
        return {}
    try:
        held: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a broken pickle leads to
        raise ValueError(
            f"Expected what was pruned in {path}, but it cannot be read ({type(error).__name__}). Is the file cut off? "
            "Copy the folder again."
        ) from None
    return held


def read_trainer_folder(folder: Path) -> dict[str, Any]:
    """Return what a checkpoint of Lightning with these weights would hold.

    Raises:
        ValueError: If something in it cannot be read.
    """
    held = read_beside(folder)
    weights: dict[str, Tensor] = {}
    try:
        for file in sorted(folder.glob("model*.safetensors")):
            weights |= load_file(file)
    except (SafetensorError, OSError) as error:
        raise ValueError(
            f"Expected weights in safetensors in {folder}, but they cannot be read: {str(error)[:200]}. Is a file cut "
            "off? Copy the folder again."
        ) from None
    for alike in held.get(TIED, ()):
        there = [name for name in alike if name in weights]
        weights |= {name: weights[there[0]] for name in alike if there}
    return {**held, "state_dict": weights}


def within_model(by_target: Mapping[str, Value]) -> dict[str, Value]:
    """Return entries by the paths of networks in the Trainer's model, from those by the paths in the ledger.

    >>> within_model({"model": 1, "model.backbone": 2})
    {'': 1, 'backbone': 2}
    """
    return {target.removeprefix(MODEL).removeprefix("."): value for target, value in by_target.items()}
