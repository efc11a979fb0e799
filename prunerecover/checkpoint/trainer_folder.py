"""Checkpoint folders of transformers' Trainer: plans and ledger in a separate file beside the weights.

The file holds the content of a Lightning checkpoint except for the weights, under the same keys. Weights have the names
of the Trainer's model, the child "model" in the ledger.
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
    """Whether a path is a folder by a Trainer of transformers with our callbacks."""
    return (path / BESIDE).is_file()


def write_beside(folder: Path, model: nn.Module, held: dict[str, Any]) -> None:
    """Write the content of a Lightning checkpoint except for the weights.

    Args:
        folder: Folder of the weights, perhaps not yet present.
        model: Model of the Trainer; tensors with several names are saved once.
        held: Primitives and tensors.
    """
    names: dict[int, list[str]] = {}
    for name, value in model.state_dict(keep_vars=True).items():
        names.setdefault(id(value), []).append(name)
    tied = [alike for alike in names.values() if len(alike) > 1]
    with atomic_file(folder / BESIDE) as unfinished:
        torch.save({**held, TIED: tied}, unfinished)


def read_beside(folder: Path) -> dict[str, Any]:
    """Return the content of the file by `write_beside`; empty for a folder without the file.

    Raises:
        ValueError: If the file cannot be read.
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
    """Return the content of a Lightning checkpoint with the folder's weights.

    Raises:
        ValueError: If a file in the folder cannot be read.
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
    """Return entries by the paths of networks in the Trainer's model, from entries by the paths in the ledger.

    >>> within_model({"model": 1, "model.backbone": 2})
    {'': 1, 'backbone': 2}
    """
    return {target.removeprefix(MODEL).removeprefix("."): value for target, value in by_target.items()}
