"""Labelled images from the hub, parquet files or class folders, as a DataModule with timm's transforms.

The `datasets` library opens all data: the same recipe runs on a local sample and on the full hub data set, with another
`path` alone. Column and split names are guessed from the usual ones and can be set. Images are resized, cropped and
normalised for the model (`model=`, or each value by name). Does not cover streaming or detection; segmentation is in
`segmentation_data`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import methodcaller
from typing import Any

from torch import Tensor

from prunerecover.display.spelled_out import spelled_out
from prunerecover.recipes.data.image_source import as_images, find_column, type_of
from prunerecover.recipes.data.table_data import IMAGE_COLUMNS, Samples, TableData
from prunerecover.recipes.networks.model_names import preprocessing

LABEL_COLUMNS = ("label", "fine_label", "labels", "cls", "class")


def _labelled(image: str, label: str, transform: Callable[[Any], Tensor], row: Any, number: int) -> tuple[Tensor, int]:
    """Return the tensor and the label of a row."""
    return transform(row[image]), int(row[label])


@spelled_out(TableData)
@dataclass(eq=False, kw_only=True)
class ImageData(TableData):
    """Train, validation and test images.

    Args:
        path: Hub id, parquet file, folder of parquet files, or folder of class folders.
        name: Configuration of the hub data set.
        model: Name of the timm model with the preprocessing to use: a timm name, `local-dir:/path` or hub id.
        image_size: Height and width after the crop, in pixels; None takes the model's.
        mean: Channel means; None takes the model's.
        std: Channel standard deviations; None takes the model's.
        interpolation: Interpolation, `bicubic` or `bilinear`; None takes the model's.
        crop_pct: Share of the resized image inside the centre crop; None takes the model's.
        image_column: Name of the image column; None guesses.
        label_column: Name of the label column; None guesses.
        augment: Whether to crop, flip and jitter training images at random; False uses the evaluation transform.
        augment_kwargs: Further arguments of timm's `create_transform` for training, e.g. `{"auto_augment": "rand-m9"}`.
        batch_size: Images per device.
    """

    model: str | None = None
    image_size: int | None = None
    mean: list[float] | None = None
    std: list[float] | None = None
    interpolation: str | None = None
    crop_pct: float | None = None
    image_column: str | None = None
    label_column: str | None = None
    augment: bool = True
    augment_kwargs: dict[str, Any] | None = None
    batch_size: int = 64

    def samples(self, rows: Any, role: str) -> Samples:
        """Return (transformed image, label) of each row."""
        image = find_column(rows, self.image_column, IMAGE_COLUMNS, "image")
        label = find_column(rows, self.label_column, LABEL_COLUMNS, "label")
        rows = as_images(rows, image)
        dtype = type_of(rows, label)
        if not dtype.startswith(("int", "uint")):
            raise ValueError(
                f"Expected whole-number labels in column {label!r}, but got {dtype}. "
                "Encode them first (datasets: class_encode_column), or set label_column."
            )
        transform = self.transform(training=role == "train" and self.augment)
        return Samples(rows, partial(_labelled, image, label, transform), source=self.source(role))

    def transform(self, training: bool) -> Callable[[Any], Tensor]:
        """Return timm's transform: random for training, a resize and centre crop otherwise."""
        from timm.data import create_transform, resolve_data_config
        from torchvision.transforms import Compose

        config = preprocessing(self.model) if self.model else resolve_data_config({"img_size": 224})
        channels = config["input_size"][0]
        if self.image_size is not None:
            config["input_size"] = (channels, self.image_size, self.image_size)
        for name in ("mean", "std"):  # timm's defaults are of colour images
            if len(config[name]) != channels:
                config[name] = (sum(config[name]) / len(config[name]),) * channels
        given = {name: getattr(self, name) for name in ("mean", "std", "interpolation", "crop_pct")}
        config.update({name: value for name, value in given.items() if value is not None})
        if training:
            config.update(self.augment_kwargs or {})
        of_mode = methodcaller("convert", "L" if channels == 1 else "RGB")
        return Compose([of_mode, create_transform(**config, is_training=training)])  # type: ignore[no-any-return]
