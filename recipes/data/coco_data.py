"""Images with boxes as a DataModule: COCO's own layout, or tables in COCO's schema from the hub or parquet files.

Batches are lists, since images differ in size and objects in number: images `(3, H, W)` in [0, 1] and, for each, a
mapping of `boxes` `(K, 4)` as x1 y1 x2 y2 in pixels, `labels` `(K,)`, `area` and `iscrowd`. Labels count the categories
from 0 on in the order of their ids, which COCO numbers with gaps from 1 to 90; `categories` keeps ids and names. Does
not cover masks and keypoints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from prunerecover.display.spelled_out import spelled_out
from prunerecover.recipes.data.coco_layout import is_coco_layout, open_coco_layout
from prunerecover.recipes.data.image_source import as_images, find_column
from prunerecover.recipes.data.table_data import IMAGE_COLUMNS, Samples, TableData
from prunerecover.recipes.networks.model_names import expand

OBJECTS = ("objects", "annotations", "object")
FIELDS = {
    "bbox": ("bbox", "boxes", "bboxes"),
    "category": ("category", "category_id", "label", "labels", "categories"),
    "area": ("area",),
    "iscrowd": ("iscrowd", "is_crowd"),
}
Scene = tuple[Tensor, dict[str, Tensor]]


@dataclass(frozen=True)
class SceneReader:
    """Reader of a row as (image, objects).

    Args:
        image: Column of images.
        objects: Column of objects.
        fields: Names of bounding boxes, categories, areas and crowds in the table.
        labels: Labels by the id of the category.
        bbox_format: Format of the boxes.
        transform: Transform of image and objects.
    """

    image: str
    objects: str
    fields: Mapping[str, str]
    labels: Mapping[int, int]
    bbox_format: str
    transform: Callable[[Any, dict[str, Tensor]], Scene]

    def __call__(self, row: Any, number: int) -> Scene:
        """Return the image and the objects of a row.

        Raises:
            ValueError: If the row names an unknown category.
        """
        from torchvision.ops import box_area, box_convert

        values = {field: _values(row[self.objects], name) for field, name in self.fields.items()}
        unknown = [number for number in values["category"] if number not in self.labels]
        if unknown:
            raise ValueError(
                f"Expected categories among {_some(self.labels)}, but an object is of {unknown[0]}. Is the split "
                "annotated as the others are?"
            )
        boxes = torch.tensor(values["bbox"], dtype=torch.float32).reshape(-1, 4)
        boxes = box_convert(boxes, self.bbox_format, "xyxy")
        labels = torch.tensor([self.labels[number] for number in values["category"]], dtype=torch.long)
        area = torch.tensor(values["area"], dtype=torch.float32) if "area" in values else box_area(boxes)
        crowd = torch.tensor(values["iscrowd"]) if "iscrowd" in values else torch.zeros(len(labels))
        target = {"boxes": boxes, "labels": labels, "area": area, "iscrowd": crowd.long()}
        return self.transform(row[self.image].convert("RGB"), target)


def listed(scenes: Sequence[Scene]) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    """Return a batch: a list of images and a list of objects."""
    images, targets = zip(*scenes, strict=True)
    return list(images), list(targets)


@spelled_out(TableData)
@dataclass(eq=False, kw_only=True)
class CocoData(TableData):
    """Train, validation and test scenes.

    Args:
        path: Folder in COCO's layout (`annotations/instances_<split>.json` beside `<split>/` or `images/<split>/`), hub
            id, parquet file, or folder of parquet files.
        name: Configuration of the hub data set.
        image_size: Longest side of the resized images, in pixels, to save memory; None leaves images unchanged, as the
            network resizes them anyway, and scores follow COCO's protocol.
        bbox_format: Format of a table's boxes: `xywh` as in COCO, or `xyxy`. COCO's own layout is always xywh.
        augment: Whether to flip, crop and colour training scenes at random.
        image_column: Name of the image column; None guesses.
        objects_column: Name of the column of objects; None guesses.
        batch_size: Scenes per device.
    """

    image_size: int | None = None
    bbox_format: Literal["xywh", "xyxy"] = "xywh"
    augment: bool = True
    image_column: str | None = None
    objects_column: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bbox_format not in ("xywh", "xyxy"):
            raise ValueError(f"Expected bbox_format to be 'xywh' or 'xyxy', but got {self.bbox_format!r}.")
        self.categories: dict[int, str] = {}
        self._opened: Any = None

    def open_splits(self) -> Any:
        """Return the `datasets.DatasetDict` at `path`, and read its categories."""
        if self._opened is None:
            folder = Path(expand(self.path))
            if folder.is_dir() and is_coco_layout(folder):
                self._opened, self.categories = open_coco_layout(folder)
            else:
                self._opened = super().open_splits()
        return self._opened

    def samples(self, rows: Any, role: str) -> Samples:
        """Return (image, objects) of each row.

        Raises:
            ValueError: If the column is missing, or has no boxes and categories.
        """
        image = find_column(rows, self.image_column, IMAGE_COLUMNS, "image")
        objects = find_column(rows, self.objects_column, OBJECTS, "objects")
        fields = _fields(rows.features[objects], objects)
        if not self.categories:
            self.categories = _categories(self.open_splits(), objects, fields["category"])
        labels = {number: label for label, number in enumerate(self.categories)}
        transform = SceneTransform(self.image_size, role == "train" and self.augment)
        reader = SceneReader(image, objects, fields, labels, self.bbox_format, transform)
        return Samples(as_images(rows, image), reader, listed, self.source(role))


class SceneTransform:
    """Transform of images to tensors, with their boxes.

    Args:
        image_size: Longest side; None leaves images unchanged.
        training: Whether to flip, crop and colour at random.
    """

    def __init__(self, image_size: int | None, training: bool) -> None:
        import torchvision.transforms.v2 as v2

        random = [
            v2.RandomPhotometricDistort(p=0.5),
            v2.RandomApply([v2.RandomIoUCrop()], p=0.5),
            v2.RandomHorizontalFlip(),
            v2.SanitizeBoundingBoxes(labels_getter=_per_object),
        ]
        resize = [] if image_size is None else [v2.Resize(None, max_size=image_size, antialias=True)]
        self.steps = v2.Compose([v2.ToImage(), *resize, *(random if training else []), v2.ToDtype(torch.float32, True)])

    def __call__(self, image: Any, target: dict[str, Tensor]) -> Scene:
        """Return the image `(3, H, W)` in [0, 1] and its objects, areas in pixels of the returned image."""
        from torchvision.tv_tensors import BoundingBoxes, BoundingBoxFormat

        boxes = BoundingBoxes(
            target["boxes"], format=BoundingBoxFormat.XYXY, canvas_size=(image.height, image.width), clamping_mode=None
        )
        pixels, moved = self.steps(image, {**target, "boxes": boxes})
        scale = max(pixels.shape[-2:]) / max(image.height, image.width)
        area = moved["area"] if pixels.shape[-2:] == boxes.canvas_size else moved["area"] * scale**2
        plain = {name: value.as_subclass(Tensor) for name, value in moved.items()}
        return pixels.as_subclass(Tensor), {**plain, "area": area}


def _per_object(scene: tuple[Any, dict[str, Tensor]]) -> tuple[Tensor, ...]:
    """Return the entries per box."""
    return scene[1]["labels"], scene[1]["area"], scene[1]["iscrowd"]


def _fields(feature: Any, column: str) -> dict[str, str]:
    """Return the names of the fields of a table's objects.

    Raises:
        ValueError: If the objects have no boxes or no categories.
    """
    inside = _inside(feature)
    known = list(inside) if isinstance(inside, Mapping) else []
    found = {field: next((name for name in usual if name in known), None) for field, usual in FIELDS.items()}
    for field in ("bbox", "category"):
        if found[field] is None:
            raise ValueError(
                f"Expected objects with {' or '.join(FIELDS[field])} in column {column!r}, as COCO has them, but it "
                f"has {', '.join(known) or feature}. Set objects_column, or rename them."
            )
    return {field: name for field, name in found.items() if name is not None}


def _inside(feature: Any) -> Any:
    """Return the element type of a list feature, or the feature itself."""
    if isinstance(feature, list):
        return feature[0]
    inside = getattr(feature, "feature", None)
    return feature if inside is None else inside


def _values(objects: Any, name: str) -> list[Any]:
    """Return a field of all objects, from a mapping of lists or a list of mappings."""
    return list(objects[name]) if isinstance(objects, Mapping) else [entry[name] for entry in objects]


def _categories(splits: Any, column: str, field: str) -> dict[int, str]:
    """Return the names of categories by id: of a `ClassLabel`, else the numbers in the data."""
    first = next(iter(splits.values()))
    names = getattr(_inside(_inside(first.features[column])[field]), "names", None)
    if names:
        return dict(enumerate(names))
    found = {n for rows in splits.values() for objects in rows[column] for n in _values(objects, field)}
    return {number: str(number) for number in sorted(found)}


def _some(labels: Mapping[int, int]) -> str:
    known = list(map(str, labels))
    return ", ".join(known) if len(known) < 8 else f"{', '.join(known[:3])} ... {known[-1]}"
