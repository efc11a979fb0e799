"""Opening tables of documents: hub ids and local files through one call.

Local data is one file, or a folder of files of one kind (named or foldered by split, as the hub stores them): parquet,
jsonl or json with one document per row, or txt with one document per file. Everything else is taken for a hub id.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prunerecover.recipes.data.image_source import open_hub
from prunerecover.recipes.networks.model_names import expand

KINDS = {".parquet": "parquet", ".jsonl": "json", ".json": "json", ".txt": "text"}
OPTIONS = {"text": {"sample_by": "document"}}
USUAL = "parquet, jsonl, json or txt"


def open_text(path: str, name: str | None = None) -> Any:
    """Return the `datasets.DatasetDict` at `path`: a hub id, a file, or a folder of files.

    Raises:
        ValueError: If a local path does not exist or holds no text or text of several kinds, or the hub cannot be
            reached.
    """
    from datasets import load_dataset

    local = Path(expand(path))
    if not local.exists():
        return open_hub(path, name)
    kind = _kind_in(local) if local.is_dir() else KINDS.get(local.suffix)
    if kind is None:
        raise ValueError(f"Expected a {USUAL} file, but got {local}. Convert it, or give a folder or a hub id.")
    source: dict[str, Any] = {"data_dir": str(local)} if local.is_dir() else {"data_files": {"train": str(local)}}
    return load_dataset(kind, **source, **OPTIONS.get(kind, {}))


def _kind_in(folder: Path) -> str:
    """Return what the files of a folder are opened as."""
    kinds = {KINDS[file.suffix] for file in folder.rglob("*") if file.suffix in KINDS}
    if len(kinds) != 1:
        found = f"files of several kinds ({', '.join(sorted(kinds))})" if kinds else "none"
        raise ValueError(
            f"Expected {USUAL} files of one kind in {folder}, but found {found}. Check the path, or name one file."
        )
    return kinds.pop()
