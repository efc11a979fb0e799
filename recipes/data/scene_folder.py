"""Folders of images and annotations, as MIT publishes ADE20K (ADEChallengeData2016), read as a `datasets` table.

`images/training/a.jpg` belongs to `annotations/training/a.png`; the inner folders are the splits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

IMAGES, ANNOTATIONS = "images", "annotations"
SUFFIXES = {".jpg", ".jpeg", ".png"}
SHOWN = 3  # names in an error


def is_scene_folder(path: Path) -> bool:
    """Whether a folder has images and annotations, and no parquet files."""
    return (path / IMAGES).is_dir() and (path / ANNOTATIONS).is_dir() and not any(path.glob("*.parquet"))


def open_scene_folder(path: Path) -> Any:
    """Return the `datasets.DatasetDict` with the columns image and annotation.

    Raises:
        ValueError: If there is no split, an image has no annotation, or an annotation no image.
    """
    from datasets import Dataset, DatasetDict, Image

    splits = {folder.name: _pairs(path, folder.name) for folder in sorted((path / IMAGES).iterdir()) if folder.is_dir()}
    if not splits:
        raise ValueError(
            f"Expected folders of splits in {path / IMAGES}, such as training and validation, but found none. Check "
            "the path."
        )
    tables = {name: Dataset.from_dict(pairs) for name, pairs in splits.items()}
    return DatasetDict(
        {name: rows.cast_column("image", Image()).cast_column("annotation", Image()) for name, rows in tables.items()}
    )


def _pairs(path: Path, split: str) -> dict[str, list[str]]:
    images, annotations = ({p.stem: str(p) for p in _files(path / part / split)} for part in (IMAGES, ANNOTATIONS))
    alone = sorted(images.keys() ^ annotations.keys())
    if alone:
        raise ValueError(
            f"Expected an image and an annotation of each scene of {split} in {path}, but one of the two is missing "
            f"for {len(alone)} ({', '.join(alone[:SHOWN])}). Copy the folder again."
        )
    return {"image": [images[name] for name in sorted(images)], "annotation": [annotations[n] for n in sorted(images)]}


def _files(folder: Path) -> list[Path]:
    return [p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES] if folder.is_dir() else []
