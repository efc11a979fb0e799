"""DataModule over the splits of a `datasets` table: the shared part of images and text."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, TypedDict

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, Dataset

from prunerecover.recipes.data.image_source import find_split, open_source, subset

IMAGE_COLUMNS = ("image", "img", "jpg", "png", "picture")
SPLITS = {"train": ("train", "training"), "val": ("validation", "valid", "val", "dev"), "test": ("test",)}


class TableArguments(TypedDict, total=False):
    """Types of the arguments for data of all kinds.

    Args:
        train_split: Name of the training split; None guesses.
        val_split: Name of the validation split; None guesses.
        test_split: Name of the test split; None guesses, and falls back to the validation split.
        val_fraction: Share of the training split to set aside for validation (seeded), instead of a separate split.
        limit_train: Number of training samples to use, drawn with `seed`; None: all.
        limit_val: Number of validation samples to use, drawn with `seed`; None: all.
        limit_test: Number of test samples to use, drawn with `seed`; None: all.
        num_workers: Number of loader processes.
        seed: Seed of the subsets and of `val_fraction`.
    """

    train_split: str | None
    val_split: str | None
    test_split: str | None
    val_fraction: float
    limit_train: int | None
    limit_val: int | None
    limit_test: int | None
    num_workers: int
    seed: int


class TableData(pl.LightningDataModule):
    """Train, validation and test rows of a source; see also `TableArguments`.

    Args:
        path: Hub id, or local files for `open_splits`.
        name: Configuration of the hub data set.
        batch_size: Samples per device.
    """

    def __init__(
        self,
        path: str,
        name: str | None,
        batch_size: int,
        *,
        train_split: str | None = None,
        val_split: str | None = None,
        test_split: str | None = None,
        val_fraction: float = 0.0,
        limit_train: int | None = None,
        limit_val: int | None = None,
        limit_test: int | None = None,
        num_workers: int = 2,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if not 0 <= val_fraction < 1:
            raise ValueError(f"Expected val_fraction to be in [0, 1), but got {val_fraction}. 0.1 sets a tenth aside.")
        self.path, self.name = path, name
        self.split_names = {"train": train_split, "val": val_split, "test": test_split}
        self.limits = {"train": limit_train, "val": limit_val, "test": limit_test}
        self.val_fraction, self.seed = val_fraction, seed
        self.batch_size, self.num_workers = batch_size, num_workers
        self.datasets: dict[str, Dataset[Any]] = {}

    @abstractmethod
    def samples(self, rows: Any, role: str) -> Dataset[Any]:
        """Return the data set of a role's loaders; its optional method `collate(samples) -> batch` makes the batches.

        Args:
            rows: Rows of the role, a `datasets.Dataset`.
            role: Role, "train", "val" or "test".
        """

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
        if self.val_fraction and (role == "train" or (role == "val" and self.split_names["val"] is None)):
            train = find_split(splits, self.split_names["train"], SPLITS["train"], "train", self.path)
            if len(train) < 2:
                raise ValueError(
                    f"Expected two or more rows in {self.path}, to set val_fraction={self.val_fraction} of them aside, "
                    f"but got {len(train)}. Give validation data of its own, or val_fraction=0."
                )
            parts = train.train_test_split(test_size=self.val_fraction, seed=self.seed)
            rows = parts["train" if role == "train" else "test"]
        else:
            usual = SPLITS[role] + (SPLITS["val"] if role == "test" else ())
            name = self.split_names[role]
            if not required and name is None and not any(n in splits for n in usual):
                return None
            rows = find_split(splits, name, usual, role, self.path)
        if not len(rows):
            raise ValueError(
                f"Expected samples in the {role} split of {self.path}, but it is empty. Check the files, or set "
                f"{role}_split."
            )
        return subset(rows, role, self.limits[role], self.seed)

    def train_dataloader(self) -> DataLoader[Any]:
        """Return a shuffled loader; an incomplete last batch is dropped if there is a complete batch."""
        rows: Any = self.datasets["train"]
        return self._loader(rows, shuffle=True, drop_last=len(rows) >= self.batch_size)

    def val_dataloader(self) -> DataLoader[Any] | list[Any]:
        """Return a loader in order; an empty list without a validation split."""
        return self._loader(self.datasets["val"]) if "val" in self.datasets else []

    def test_dataloader(self) -> DataLoader[Any]:
        """Return a loader in order."""
        return self._loader(self.datasets["test"])

    def predict_dataloader(self) -> DataLoader[Any]:
        """Return the test rows, in order."""
        return self._loader(self.datasets["test"])

    def _loader(self, rows: Dataset[Any], shuffle: bool = False, drop_last: bool = False) -> DataLoader[Any]:
        return DataLoader(
            rows,
            batch_size=self.batch_size,
            shuffle=shuffle,
            drop_last=drop_last,
            num_workers=self.num_workers,
            collate_fn=getattr(rows, "collate", None),
            pin_memory=torch.cuda.is_available(),
        )
