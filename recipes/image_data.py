"""Labelled images from the hub, parquet files or class folders, as a DataModule with timm's transforms.

Everything is opened by the `datasets` library, so the same recipe runs on a local sample and on the full hub data set:
only `path` changes. Column and split names are guessed from the usual ones and can be set. Images are resized, cropped
and normalised as the model expects (`model=`, or each value by name).
Does not cover streaming, detection or segmentation (see `image_source` for how files are opened).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from prunerecover.recipes.image_source import find_column, find_split, open_source, subset
from prunerecover.recipes.model_names import preprocessing

IMAGE_COLUMNS = ("image", "img", "jpg", "png", "picture")
LABEL_COLUMNS = ("label", "fine_label", "labels", "cls", "class")
SPLITS = {"train": ("train", "training"), "val": ("validation", "valid", "val", "dev"), "test": ("test",)}


@dataclass(frozen=True)
class Transform:
    """Turns an image of any mode into the tensor that a model of 1 or 3 channels takes."""

    mode: str
    tensor_of: Callable[[Any], Tensor]

    def __call__(self, image: Any) -> Tensor:
        """Return the tensor of a PIL image."""
        return self.tensor_of(image.convert(self.mode))


class LabelledImages(Dataset[tuple[Tensor, int]]):
    """Rows of a `datasets` table as (transformed image, label)."""

    def __init__(self, rows: Any, image: str, label: str, transform: Callable[[Any], Tensor]) -> None:
        self.rows, self.image, self.label, self.transform = rows, image, label, transform

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        row = self.rows[index]
        return self.transform(row[self.image]), int(row[self.label])


class ImageData(pl.LightningDataModule):
    """Train, validation and test images.

    Args:
        path: A hub id, a parquet file, a folder of parquet files, or a folder of class folders.
        name: The hub data set's configuration.
        model: The timm model whose preprocessing is used; a timm name, `local-dir:/path` or hub id.
        image_size: Height and width after the crop, in pixels; None takes the model's.
        mean: Channel means; None takes the model's.
        std: Channel standard deviations; None takes the model's.
        interpolation: `bicubic` or `bilinear`; None takes the model's.
        crop_pct: Share of the resized image that the centre crop keeps; None takes the model's.
        train_split: Name of the training split; None guesses.
        val_split: Name of the validation split; None guesses.
        test_split: Name of the test split; None guesses, and falls back to the validation split.
        val_fraction: Share of the training split to set aside for validation (seeded), instead of a split of its own.
        image_column: Name of the image column; None guesses.
        label_column: Name of the label column; None guesses.
        augment: Random crops, flips and colour jitter on training images; False uses the evaluation transform.
        augment_kwargs: Further arguments of timm's `create_transform` for training, e.g. `{"auto_augment": "rand-m9"}`.
        limit_train: Use this many training images, drawn with `seed`.
        limit_val: Use this many validation images, drawn with `seed`.
        limit_test: Use this many test images, drawn with `seed`.
        batch_size: Per device.
        num_workers: Loader processes.
        seed: Of the subsets and of `val_fraction`.
    """

    def __init__(
        self,
        path: str,
        name: str | None = None,
        model: str | None = None,
        image_size: int | None = None,
        mean: list[float] | None = None,
        std: list[float] | None = None,
        interpolation: str | None = None,
        crop_pct: float | None = None,
        train_split: str | None = None,
        val_split: str | None = None,
        test_split: str | None = None,
        val_fraction: float = 0.0,
        image_column: str | None = None,
        label_column: str | None = None,
        augment: bool = True,
        augment_kwargs: dict[str, Any] | None = None,
        limit_train: int | None = None,
        limit_val: int | None = None,
        limit_test: int | None = None,
        batch_size: int = 64,
        num_workers: int = 2,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if not 0 <= val_fraction < 1:
            raise ValueError(f"Expected val_fraction to be in [0, 1), but got {val_fraction}. 0.1 sets a tenth aside.")
        self.path, self.name, self.model = path, name, model
        given = {"mean": mean, "std": std, "interpolation": interpolation, "crop_pct": crop_pct}
        self.given = {key: value for key, value in given.items() if value is not None}
        self.image_size = image_size
        self.split_names = {"train": train_split, "val": val_split, "test": test_split}
        self.limits = {"train": limit_train, "val": limit_val, "test": limit_test}
        self.val_fraction, self.seed = val_fraction, seed
        self.image_column, self.label_column = image_column, label_column
        self.augment, self.augment_kwargs = augment, augment_kwargs or {}
        self.batch_size, self.num_workers = batch_size, num_workers
        self.datasets: dict[str, LabelledImages] = {}

    def prepare_data(self) -> None:
        """Download and convert once, on one process."""
        open_source(self.path, self.name)

    def setup(self, stage: str) -> None:
        """Open the splits that `stage` needs.

        Raises:
            ValueError: If a needed split or column does not exist.
        """
        needed = {"fit": ("train", "val"), "validate": ("val",), "test": ("test",), "predict": ("test",)}[stage]
        splits = open_source(self.path, self.name)
        for role in needed:
            if role not in self.datasets:
                rows = self._rows(splits, role, required=not (stage == "fit" and role == "val"))
                if rows is not None:
                    self.datasets[role] = self._labelled(rows, role)

    def _rows(self, splits: Any, role: str, required: bool) -> Any:
        """Return the table of one role, or None for an optional one that does not exist."""
        if self.val_fraction and (role == "train" or (role == "val" and self.split_names["val"] is None)):
            train = find_split(splits, self.split_names["train"], SPLITS["train"], "train", self.path)
            parts = train.train_test_split(test_size=self.val_fraction, seed=self.seed)
            rows = parts["train" if role == "train" else "test"]
        else:
            usual = SPLITS[role] + (SPLITS["val"] if role == "test" else ())
            name = self.split_names[role]
            if not required and name is None and not any(n in splits for n in usual):
                return None
            rows = find_split(splits, name, usual, role, self.path)
        return subset(rows, self.limits[role], self.seed)

    def _labelled(self, rows: Any, role: str) -> LabelledImages:
        from datasets import Image

        image = find_column(rows, self.image_column, IMAGE_COLUMNS, "image")
        label = find_column(rows, self.label_column, LABEL_COLUMNS, "label")
        if not isinstance(rows.features[image], Image):
            rows = rows.cast_column(image, Image())
        dtype = str(getattr(rows.features[label], "dtype", rows.features[label]))
        if not dtype.startswith(("int", "uint")):
            raise ValueError(
                f"Expected whole-number labels in column {label!r}, but got {dtype}. "
                "Encode them first (datasets: class_encode_column), or set label_column."
            )
        return LabelledImages(rows, image, label, self.transform(training=role == "train" and self.augment))

    def transform(self, training: bool) -> Callable[[Any], Tensor]:
        """Return timm's transform: random for training, a resize and centre crop otherwise."""
        from timm.data import create_transform, resolve_data_config

        config = preprocessing(self.model) if self.model else resolve_data_config({"img_size": 224})
        channels = config["input_size"][0]
        if self.image_size is not None:
            config["input_size"] = (channels, self.image_size, self.image_size)
        for name in ("mean", "std"):  # timm gives those of colour images where a model does not name its own
            if len(config[name]) != channels:
                config[name] = (sum(config[name]) / len(config[name]),) * channels
        config.update(self.given)
        if training:
            config.update(self.augment_kwargs)
        return Transform("L" if channels == 1 else "RGB", create_transform(**config, is_training=training))

    def train_dataloader(self) -> DataLoader[tuple[Tensor, int]]:
        """Shuffled; an incomplete last batch is dropped when there is more than one."""
        rows = self.datasets["train"]
        return self._loader(rows, shuffle=True, drop_last=len(rows) >= self.batch_size)

    def val_dataloader(self) -> DataLoader[tuple[Tensor, int]] | list[Any]:
        """In order; an empty list when the data has no validation split."""
        return self._loader(self.datasets["val"]) if "val" in self.datasets else []

    def test_dataloader(self) -> DataLoader[tuple[Tensor, int]]:
        """In order."""
        return self._loader(self.datasets["test"])

    def predict_dataloader(self) -> DataLoader[tuple[Tensor, int]]:
        """The test images, in order."""
        return self._loader(self.datasets["test"])

    def _loader(
        self, rows: LabelledImages, shuffle: bool = False, drop_last: bool = False
    ) -> DataLoader[tuple[Tensor, int]]:
        return DataLoader(
            rows,
            batch_size=self.batch_size,
            shuffle=shuffle,
            drop_last=drop_last,
            num_workers=self.num_workers,
            pin_memory=torch.cuda.is_available(),
        )
