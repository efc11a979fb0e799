"""DataModule over the splits of a `datasets` table: one dataclass of splits and loaders, for images and text alike.

A kind of data is a subclass with its own columns as further fields, and with `samples`, which reads the rows.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, Dataset

from prunerecover.recipes.data.image_source import find_split, open_source, subset

IMAGE_COLUMNS = ("image", "img", "jpg", "png", "picture")
SPLITS = {"train": ("train", "training"), "val": ("validation", "valid", "val", "dev"), "test": ("test",)}


def _unchanged(row: Any, number: int) -> Any:
    return row


@dataclass(eq=False)
class Samples(Dataset[Any]):
    """Rows of a table, read one by one.

    Args:
        rows: Rows in order, a `datasets.Dataset` or a list.
        read: Function from a row and its number to a sample; by default rows are samples.
        collate: Function from samples to a batch; None: torch's.
        source: Name of the rows, for errors.
    """

    rows: Any
    read: Callable[[Any, int], Any] = _unchanged
    collate: Callable[[Any], Any] | None = None
    source: str = "the data"

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        row = self.rows[index]
        try:
            return self.read(row, index)
        except ValueError as error:
            raise ValueError(f"{error} This is row {index} of {self.source}.") from error


@dataclass(eq=False)
class TableData(pl.LightningDataModule):
    """Train, validation and test rows of a source.

    Args:
        path: Hub id, or local files for `open_splits`.
        name: Configuration of the hub data set.
        batch_size: Samples per device.
        train_split: Name of the training split; None guesses.
        val_split: Name of the validation split; None guesses.
        test_split: Name of the test split; None guesses, and falls back to the validation split.
        val_fraction: Share of the training split to set aside for validation (seeded), instead of a separate split.
        limit_train: Number of training samples to use, drawn with `seed`; None: all.
        limit_val: Number of validation samples to use, drawn with `seed`; None: all.
        limit_test: Number of test samples to use, drawn with `seed`; None: all.
        num_workers: Number of loader processes.
        seed: Seed of the subsets and of `val_fraction`.

    Raises:
        ValueError: If an argument is out of range.
    """

    path: str
    name: str | None = None
    _: KW_ONLY
    batch_size: int = 8
    train_split: str | None = None
    val_split: str | None = None
    test_split: str | None = None
    val_fraction: float = 0.0
    limit_train: int | None = None
    limit_val: int | None = None
    limit_test: int | None = None
    num_workers: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        super().__init__()
        if not 0 <= self.val_fraction < 1:
            raise ValueError(
                f"Expected val_fraction to be in [0, 1), but got {self.val_fraction}. 0.1 sets a tenth aside."
            )
        self.datasets: dict[str, Samples] = {}

    @abstractmethod
    def samples(self, rows: Any, role: str) -> Samples:
        """Return the samples of a role's loaders.

        Args:
            rows: Rows of the role, a `datasets.Dataset`.
            role: Role, "train", "val" or "test".
        """

    def source(self, role: str) -> str:
        """Return the name of a role's rows, for errors."""
        return f"the {role} data in {self.path}"

    def open_splits(self) -> Any:
        """Return the `datasets.DatasetDict` at `path`: images, unless a subclass reads other files."""
        return open_source(self.path, self.name)

    def prepare_data(self) -> None:
        """Download and convert once, on one process."""
        self.open_splits()

    def setup(self, stage: str) -> None:
        """Open the splits for `stage`.

        Raises:
            ValueError: If a needed split or column does not exist.
        """
        needed = {"fit": ("train", "val"), "validate": ("val",), "test": ("test",), "predict": ("test",)}[stage]
        splits = self.open_splits()
        for role in needed:
            if role not in self.datasets:
                rows = self._rows(splits, role, required=not (stage == "fit" and role == "val"))
                if rows is not None:
                    self.datasets[role] = self.samples(rows, role)

    def _rows(self, splits: Any, role: str, required: bool) -> Any:
        """Return the table of a role, or None for a missing optional role."""
        if self.val_fraction and (role == "train" or (role == "val" and self.val_split is None)):
            train = find_split(splits, self.train_split, SPLITS["train"], "train", self.path)
            if len(train) < 2:
                raise ValueError(
                    f"Expected two or more rows in {self.path}, to set val_fraction={self.val_fraction} of them aside, "
                    f"but got {len(train)}. Give validation data of its own, or val_fraction=0."
                )
            parts = train.train_test_split(test_size=self.val_fraction, seed=self.seed)
            rows = parts["train" if role == "train" else "test"]
        else:
            usual = SPLITS[role] + (SPLITS["val"] if role == "test" else ())
            name = getattr(self, f"{role}_split")
            if not required and name is None and not any(n in splits for n in usual):
                return None
            rows = find_split(splits, name, usual, role, self.path)
        if not len(rows):
            raise ValueError(
                f"Expected samples in the {role} split of {self.path}, but it is empty. Check the files, or set "
                f"{role}_split."
            )
        return subset(rows, role, getattr(self, f"limit_{role}"), self.seed)

    def train_dataloader(self) -> DataLoader[Any]:
        """Return a shuffled loader; an incomplete last batch is dropped if there is a complete batch."""
        return self._loader("train", shuffle=True, drop_last=len(self.datasets["train"]) >= self.batch_size)

    def val_dataloader(self) -> DataLoader[Any] | list[Any]:
        """Return a loader in order; an empty list without a validation split."""
        return self._loader("val") if "val" in self.datasets else []

    def test_dataloader(self) -> DataLoader[Any]:
        """Return a loader in order."""
        return self._loader("test")

    def predict_dataloader(self) -> DataLoader[Any]:
        """Return the test rows, in order."""
        return self.test_dataloader()

    def _loader(self, role: str, shuffle: bool = False, drop_last: bool = False) -> DataLoader[Any]:
        return DataLoader(
            self.datasets[role],
            batch_size=self.batch_size,
            shuffle=shuffle,
            drop_last=drop_last,
            num_workers=self.num_workers,
            collate_fn=self.datasets[role].collate,
            pin_memory=torch.cuda.is_available(),
        )
