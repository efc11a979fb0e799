"""Scores on disk: what a plan in width was decided by, beside it and not in it, since a checkpoint holds its plan."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file

from prunerecover.files.atomic import atomic_file
from prunerecover.width.groups.unit_slices import Scores

SEPARATOR = "/"  # in no name of a signal, and in no path of a module


def save_scores(path: str | Path, scores: Mapping[str, Scores]) -> None:
    """Write scores, exactly, as safetensors whose keys are a signal and a group: `u_score/layer1.0.conv1`.

    Args:
        path: Of the file.
        scores: `(size,)` by signal, such as "u_score", and group.
    """
    named = {f"{signal}{SEPARATOR}{g}": v for signal, by_group in scores.items() for g, v in by_group.items()}
    with atomic_file(path) as unfinished:
        save_file({name: values.contiguous() for name, values in named.items()}, unfinished)
