"""Tables of documents: hub ids and local files opened through a single call.

Local data is a file, or a folder of files of the same kind (named or foldered by split, as on the hub): parquet, jsonl
or json with a document per row, or txt with a document per file. In a folder with several data sets, a name picks a
subfolder, or the files `NAME.SPLIT...`. Any other path is taken for a hub id.
"""

from __future__ import annotations

import glob
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

from prunerecover.recipes.data.image_source import open_hub
from prunerecover.recipes.data.table_data import SPLITS
from prunerecover.recipes.networks.model_names import expand

KINDS = {".parquet": "parquet", ".jsonl": "json", ".json": "json", ".txt": "text"}
OPTIONS = {"text": {"sample_by": "document"}}
ALL_SPLITS = {split for names in SPLITS.values() for split in names}
USUAL = "parquet, jsonl, json or txt"


def open_text(path: str, name: str | None = None) -> Any:
    """Return the `datasets.DatasetDict` at `path`: a hub id, a file, or a folder of files.

    Args:
        path: Path or hub id as a user writes it.
        name: Configuration of the hub data set, or name of a data set in a local folder; a folder without the name is
            read whole.

    Raises:
        ValueError: If a local path does not exist or holds no text or text of several kinds, or the hub cannot be
            reached.
    """
    from datasets import load_dataset

    local = Path(expand(path))
    if not local.exists():
        return open_hub(path, name)
    if name and (local / name).is_dir():
        local /= name
    kind = _kind_in(local) if local.is_dir() else KINDS.get(local.suffix)
    if kind is None:
        raise ValueError(f"Expected a {USUAL} file, but got {local}. Convert it, or give a folder or a hub id.")
    files = {"train": [str(local)]} if local.is_file() else _splits_called(local, name)
    source: dict[str, Any] = {"data_files": files} if files else {"data_dir": str(local)}
    return load_dataset(kind, **source, **OPTIONS.get(kind, {}))


def _splits_called(folder: Path, name: str | None) -> dict[str, list[str]]:
    """Return the files `NAME.SPLIT...` of a folder by their split."""
    found: dict[str, list[str]] = defaultdict(list)
    if not name:
        return found
    for file in sorted(folder.glob(f"{glob.escape(name)}.*")):
        split = re.split(r"[.\-_]", file.name.removeprefix(name)[1:])[0]
        if file.suffix in KINDS and split in ALL_SPLITS:
            found[split].append(str(file))
    return found


def _kind_in(folder: Path) -> str:
    """Return the loader for the files of a folder."""
    kinds = {KINDS[file.suffix] for file in folder.rglob("*") if file.suffix in KINDS}
    if len(kinds) != 1:
        found = f"files of several kinds ({', '.join(sorted(kinds))})" if kinds else "none"
        raise ValueError(
            f"Expected {USUAL} files of one kind in {folder}, but found {found}. Check the path, or name one file."
        )
    return kinds.pop()
