"""DataModule over a table of text, questions or instructions: the shared part of data for language models.

Hub ids and local files are opened through a single call. Local data is a file, or a folder of files of the same kind
(named or foldered by split, as on the hub): parquet, jsonl or json with a document per row, or txt with a document per
file. In a folder with several data sets, a name picks a subfolder, or the files `NAME.SPLIT...`. Any other path is
taken for a hub id.
"""

from __future__ import annotations

import glob
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prunerecover.display.spelled_out import spelled_out
from prunerecover.recipes.data.image_source import open_hub
from prunerecover.recipes.data.language.tokenizers import name_of
from prunerecover.recipes.data.table_data import SPLITS, Samples, TableData
from prunerecover.recipes.networks.model_names import expand

KINDS = {".parquet": "parquet", ".jsonl": "json", ".json": "json", ".txt": "text"}
OPTIONS = {"text": {"sample_by": "document"}}
ALL_SPLITS = {split for names in SPLITS.values() for split in names}
USUAL = "parquet, jsonl, json or txt"


@spelled_out(TableData)
@dataclass(eq=False, kw_only=True)
class LanguageData(TableData):
    """Train, validation and test rows of a source, for a language model.

    Args:
        path: Hub id, or local files for `open_text`.
        name: Configuration of the hub data set; in a local folder of several data sets, the name of one.
        model: Path or hub id of the language model with the tokenizer and the context length; None: the trained model.
        tokenizer: Path or hub id of another tokenizer; None takes the model's.

    Raises:
        ValueError: If an argument is out of range.
    """

    model: str | None = None
    tokenizer: str | None = None
    num_workers: int = 0

    def setup(self, stage: str) -> None:
        """Open the splits for `stage`.

        Raises:
            ValueError: If a needed split, column or tokenizer does not exist.
        """
        if self.model is None and self.trainer is not None:
            self.model = name_of(self.trainer.lightning_module)
        super().setup(stage)

    def open_splits(self) -> Any:
        """Return the rows of every split."""
        return open_text(self.path, self.name)

    def read(self, rows: Any, role: str, read: Callable[[Any, int], Any]) -> list[Any]:
        """Return what a reader makes of each row, in memory."""
        samples = Samples(rows, read, source=self.source(role))
        return [samples[number] for number in range(len(samples))]


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
