"""Tables of images: hub ids and local files opened through a single call, splits and columns by guess or by name.

Local data is a parquet file, a folder with parquet files (named or foldered by split, as on the hub), or a folder with
a folder per class. Any other path is taken for a hub id.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prunerecover.recipes.data.needed import check_installed
from prunerecover.recipes.networks.model_names import expand

check_installed("datasets")


def open_source(path: str, name: str | None = None) -> Any:
    """Return the `datasets.DatasetDict` at `path`: a hub id, a parquet file, or a folder of parquet or images.

    Raises:
        ValueError: If a local path does not exist, a folder has no readable files, or the hub cannot be reached.
    """
    local = Path(expand(path))
    if local.is_file():
        return _load_local("parquet", local, data_files={"train": str(local)})
    if local.is_dir():
        kind = "parquet" if any(local.rglob("*.parquet")) else "imagefolder"
        if kind == "imagefolder" and not any(p.is_dir() for p in local.iterdir()):
            raise ValueError(
                f"Expected parquet files or one folder per class in {local}, but found neither. "
                "Check the path, or convert the data to one of the two."
            )
        return _load_local(kind, local, data_dir=str(local))
    return open_hub(path, name)


def _load_local(kind: str, local: Path, **files: Any) -> Any:
    from datasets import load_dataset
    from datasets.exceptions import DatasetGenerationError

    try:
        return load_dataset(kind, **files)
    except DatasetGenerationError as error:
        empty = [path.name for path in sorted(local.rglob("*.parquet")) if not _has_rows(path)]
        found = f"{', '.join(empty)} has no rows" if empty else f"got: {error.__cause__ or error}"
        raise ValueError(
            f"Expected {kind} files that can be read in {local}, but {found}. Take such files out, or write them again."
        ) from error


def _has_rows(path: Path) -> bool:
    import pyarrow
    import pyarrow.parquet as pq

    try:
        return bool(pq.read_metadata(path).num_rows)
    except pyarrow.ArrowInvalid:  # no parquet file: the message of datasets is right
        return True


def open_hub(path: str, name: str | None = None) -> Any:
    """Return the `datasets.DatasetDict` of a hub id; `path` must not exist locally.

    Raises:
        ValueError: If the path can only be local, or the hub cannot be reached.
    """
    from datasets import load_dataset

    local = Path(expand(path))
    if local.is_absolute() or path.startswith((".", "~", "$")) or path.count("/") > 1 or local.suffix:
        raise ValueError(f"Expected data at {local}, but nothing is there. Check the path, or give a hub id instead.")
    try:
        return load_dataset(path, name)
    except (ConnectionError, FileNotFoundError) as error:
        raise ValueError(
            f"Expected {path!r} to be a local path or a hub data set that can be reached, but got: {error}. "
            "Check the spelling and the network, and HF_TOKEN for gated data; without a network give the path of a "
            f"copy (`hf download {path} --repo-type dataset --local-dir FOLDER` makes one)."
        ) from error
    except RuntimeError as error:  # old data sets made of code
        raise ValueError(
            f"Expected {path!r} to be a data set that can be opened, but got: {error}. If it has a parquet version, "
            f"copy that, and give its path: `hf download {path} --repo-type dataset --revision refs/convert/parquet "
            "--local-dir FOLDER`."
        ) from error


def find_split(splits: Any, name: str | None, usual: Sequence[str], role: str, path: str) -> Any:
    """Return a split of a data set.

    Args:
        splits: All splits, a `datasets.DatasetDict`.
        name: Name of the split; None: the first of the usual names in the data.
        usual: Names to try, in order.
        role: Role, "train", "val" or "test", for the message.
        path: Path of the data, for the message.

    Raises:
        ValueError: If no split is found; the message lists the splits.
    """
    for candidate in usual if name is None else (name,):
        if candidate in splits:
            return splits[candidate]
    wanted = repr(name) if name else " or ".join(usual)
    fix = " or val_fraction=0.1" if role == "val" else ""
    raise ValueError(
        f"Expected a {role} split named {wanted} in {path}, but it has {', '.join(splits)}. Set {role}_split{fix}."
    )


def find_column(rows: Any, name: str | None, usual: Sequence[str], role: str) -> str:
    """Return the name of a column.

    Args:
        rows: Table, a `datasets.Dataset`.
        name: Name of the column; None: the first of the usual names in the data.
        usual: Names to try, in order.
        role: Role, such as "image" or "label", for the message.

    Raises:
        ValueError: If no column is found; the message lists the columns.
    """
    for candidate in usual if name is None else (name,):
        if candidate in rows.column_names:
            return candidate
    wanted = repr(name) if name else " or ".join(usual)
    raise ValueError(
        f"Expected a column for the {role} named {wanted}, but the data has {', '.join(rows.column_names)}. Set "
        f"{role}_column."
    )


def type_of(rows: Any, column: str) -> str:
    """Return the type of a column, such as "int64" or "string"."""
    feature = rows.features[column]
    return str(getattr(feature, "dtype", feature))


def as_images(rows: Any, column: str) -> Any:
    """Return rows with `column` decoded to PIL images, also for files of bare bytes."""
    from datasets import Image

    return rows if isinstance(rows.features[column], Image) else rows.cast_column(column, Image())


def subset(rows: Any, role: str, limit: int | None, seed: int) -> Any:
    """Return some rows, drawn at random, or all rows.

    Args:
        rows: Table, a `datasets.Dataset`.
        role: Role, "train", "val" or "test", for the message.
        limit: Number of rows; None: all, in order.
        seed: Seed of the draw.

    Raises:
        ValueError: If there are fewer rows than `limit`.
    """
    if limit is None:
        return rows
    if not 0 < limit <= len(rows):
        raise ValueError(
            f"Expected limit_{role} to be between 1 and {len(rows)}, the rows that are there for it, but got {limit}. "
            "Lower it, or leave it out."
        )
    return rows.shuffle(seed=seed).select(range(limit))
