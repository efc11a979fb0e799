"""Images with a class per pixel, from the hub, parquet files or MIT's folder of ADE20K, as a DataModule.

Both columns are images; the annotation holds a class index per pixel. Scenes are rescaled and cropped at random for
training, as in Segmenter (arXiv 2105.05633) and mmsegmentation on ADE20K. For evaluation image and annotation are
resized to the crop's size, and scores are of that resolution; the published protocol slides a window over the full
image, with slightly higher scores.

In MIT's folder `images/training/a.jpg` belongs to `annotations/training/a.png`; the inner folders are the splits.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prunerecover.display.spelled_out import spelled_out
from prunerecover.recipes.data.image_source import as_images, find_column
from prunerecover.recipes.data.table_data import IMAGE_COLUMNS, Samples, TableData
from prunerecover.recipes.networks.model_names import expand, preprocessing

ANNOTATION_COLUMNS = ("annotation", "mask", "label", "segmentation")
IGNORED = 255
IMAGES, ANNOTATIONS = "images", "annotations"  # folders of MIT's ADE20K
SUFFIXES = {".jpg", ".jpeg", ".png"}
SHOWN = 3  # names in an error


@dataclass(frozen=True)
class SceneTransform:
    """Transform of a PIL image and an annotation `(H, W)` to tensors of equal size.

    Args:
        steps: Transforms of both, of torchvision.
        normalise: Transform of the image alone.
        first_class: Annotation value of class 0.
        ignore: Annotation value without a score; None: no value.
    """

    steps: Any
    normalise: Any
    first_class: int
    ignore: int | None

    def __call__(self, image: Any, annotation: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return the image `(3, H, W)` and the class per pixel `(H, W)`."""
        from torchvision.transforms.v2.functional import to_image
        from torchvision.tv_tensors import Mask

        pixels, classes = self.steps(to_image(image), Mask(self._classes(torch.from_numpy(annotation))))
        return self.normalise(pixels).as_subclass(Tensor), classes.as_subclass(Tensor).long()

    def _classes(self, annotation: Tensor) -> Tensor:
        """Return class indices from 0 on, with `IGNORED` for unscored pixels.

        Raises:
            ValueError: If the annotation is a picture in colours.
        """
        if annotation.ndim != 2:
            raise ValueError(
                "Expected an annotation with one class index per pixel, (H, W), but got one of shape "
                f"{tuple(annotation.shape)}. Convert colours to indices first."
            )
        values = annotation.long()
        unscored = values < self.first_class
        if self.ignore is not None:
            unscored |= values == self.ignore
        return (values - self.first_class).masked_fill(unscored, IGNORED).to(torch.uint8)


@dataclass(frozen=True)
class SceneReader:
    """Reader of a row as (image `(3, H, W)`, class per pixel `(H, W)`)."""

    image: str
    annotation: str
    transform: SceneTransform

    def __call__(self, row: Any, number: int) -> tuple[Tensor, Tensor]:
        """Return the image and the classes of a row.

        Raises:
            ValueError: If image and annotation differ in size, or the annotation is a picture in colours.
        """
        image, annotation = row[self.image], row[self.annotation]
        if image.size != annotation.size:
            sizes = [f"{width} x {height}" for width, height in (image.size, annotation.size)]
            raise ValueError(
                f"Expected an annotation of the size of its image, {sizes[0]} pixels, but got {sizes[1]}. Resize one "
                "of the two, annotations without interpolation, or leave the scene out."
            )
        return self.transform(image.convert("RGB"), np.array(annotation))


@spelled_out(TableData)
@dataclass(eq=False, kw_only=True)
class SegmentationData(TableData):
    """Train, validation and test scenes.

    Args:
        path: Hub id, parquet file, folder of parquet files, or folder with images/ and annotations/ by split, as MIT
            publishes ADE20K (ADEChallengeData2016).
        name: Configuration of the hub data set.
        model: Name of the timm model with the mean and standard deviation for normalisation; None: ImageNet's.
        image_size: Size of the network's input, in pixels: a number, or height and width.
        first_class: Annotation value of class 0; lower values are not scored. 1 for ADE20K, where 0 is "other".
        ignore: Annotation value left out of the score, such as a void class; None: no value.
        scale: Range of the random rescaling before the crop; at 1.0 the short side fits the crop.
        augment: Whether to rescale, crop, flip and jitter training scenes at random; False uses the evaluation
            transform.
        image_column: Name of the image column; None guesses.
        annotation_column: Name of the annotation column; None guesses.
        batch_size: Scenes per device.
    """

    model: str | None = None
    image_size: int | tuple[int, int] = 512
    first_class: int = 0
    ignore: int | None = None
    scale: tuple[float, float] = (0.5, 2.0)
    augment: bool = True
    image_column: str | None = None
    annotation_column: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.scale[0] <= self.scale[1]:
            raise ValueError(f"Expected scale to be a range of positive numbers, but got {self.scale}. Try (0.5, 2.0).")

    def open_splits(self) -> Any:
        """Return the `datasets.DatasetDict` at `path`."""
        folder = Path(expand(self.path))
        return open_scene_folder(folder) if is_scene_folder(folder) else super().open_splits()

    def samples(self, rows: Any, role: str) -> Samples:
        """Return (image, class per pixel) of each row."""
        image = find_column(rows, self.image_column, IMAGE_COLUMNS, "image")
        annotation = find_column(rows, self.annotation_column, ANNOTATION_COLUMNS, "annotation")
        reader = SceneReader(image, annotation, self.transform(training=role == "train" and self.augment))
        return Samples(as_images(as_images(rows, image), annotation), reader, source=self.source(role))

    def transform(self, training: bool) -> SceneTransform:
        """Return the transform of a scene to tensors of `image_size`: random for training."""
        import torchvision.transforms.v2 as v2
        from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
        from torchvision.tv_tensors import Image, Mask

        config = preprocessing(self.model) if self.model else {}
        size = (self.image_size, self.image_size) if isinstance(self.image_size, int) else tuple(self.image_size)
        least, most = (int(factor * min(size)) for factor in self.scale)
        random = [
            v2.RandomResize(least, most + 1),
            v2.RandomCrop(size, pad_if_needed=True, fill={Image: 0, Mask: IGNORED}),
            v2.RandomHorizontalFlip(),
            v2.ColorJitter(brightness=0.3, contrast=0.3, saturation=0.3),
        ]
        scaled = v2.ToDtype({Image: torch.float32, "others": None}, scale=True)
        steps = v2.Compose([*(random if training else [v2.Resize(size)]), scaled])
        normalise = v2.Normalize(config.get("mean", IMAGENET_DEFAULT_MEAN), config.get("std", IMAGENET_DEFAULT_STD))
        return SceneTransform(steps, normalise, self.first_class, self.ignore)


def is_scene_folder(path: Path) -> bool:
    """Whether a folder has images and annotations, and no parquet files."""
    return (path / IMAGES).is_dir() and (path / ANNOTATIONS).is_dir() and not any(path.glob("*.parquet"))


def open_scene_folder(path: Path) -> Any:
    """Return the `datasets.DatasetDict` with the columns image and annotation.

    Raises:
        ValueError: If there is no split, an image has no annotation, or an annotation no image.
    """
    from datasets import Dataset, DatasetDict, Features, Image

    splits = {folder.name: _pairs(path, folder.name) for folder in sorted((path / IMAGES).iterdir()) if folder.is_dir()}
    if not splits:
        raise ValueError(
            f"Expected folders of splits in {path / IMAGES}, such as training and validation, but found none. Check "
            "the path."
        )
    features = Features({"image": Image(), "annotation": Image()})
    return DatasetDict({name: Dataset.from_dict(pairs, features) for name, pairs in splits.items()})


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
