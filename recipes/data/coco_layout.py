"""COCO's own layout as tables of the `datasets` library: `annotations/instances_<split>.json` beside `<split>/`.

Images without annotations stay, as examples of background for a detector. Ids of categories stay unchanged; COCO's
leave out eleven numbers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PREFIX = "instances_"
FIELDS = ("bbox", "category", "area", "iscrowd")
ROLES = {"train": "train", "val": "validation", "test": "test"}


def is_coco_layout(folder: Path) -> bool:
    """Whether a folder has COCO's annotations."""
    return any((folder / "annotations").glob(f"{PREFIX}*.json"))


def open_coco_layout(folder: Path) -> tuple[Any, dict[int, str]]:
    """Return the splits as a `datasets.DatasetDict`, and the names of the categories by id.

    `instances_train2017.json` is the split "train", `instances_val2017.json` "validation"; further splits keep their
    names.

    Raises:
        ValueError: If an annotation file is not of COCO's form, or an image is missing.
    """
    from datasets import Dataset, DatasetDict, Features, Image, Value

    number, whole = Value("float64"), Value("int64")
    objects = {"bbox": [[number]], "category": [whole], "area": [number], "iscrowd": [whole]}
    features = Features({"image_id": whole, "image": Image(), "objects": objects})
    splits: dict[str, Any] = {}
    categories: dict[int, str] = {}
    for path in sorted((folder / "annotations").glob(f"{PREFIX}*.json")):
        name = path.stem.removeprefix(PREFIX)
        found = _read(path)
        categories |= {entry["id"]: str(entry.get("name", entry["id"])) for entry in found["categories"]}
        rows = _rows(found, _folder_of_images(folder, name, path), path)
        role = next((role for start, role in ROLES.items() if name.startswith(start)), name)
        splits[role if role not in splits else name] = Dataset.from_list(rows, features=features)
    return DatasetDict(splits), dict(sorted(categories.items()))


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"Expected JSON at {path}, but it cannot be read ({error}). Copy it again.") from None
    missing = [key for key in ("images", "annotations", "categories") if key not in found]
    if missing:
        raise ValueError(
            f"Expected images, annotations and categories in {path}, as COCO has them, but {', '.join(missing)} is "
            f"missing; it has {', '.join(map(str, found)) or 'nothing'}. Is it a file of instances?"
        )
    if not found["images"]:
        raise ValueError(f"Expected images in {path}, but its list is empty. Remove the file, or write it again.")
    return found  # type: ignore[no-any-return]


def _folder_of_images(folder: Path, name: str, path: Path) -> Path:
    places = (folder / name, folder / "images" / name)
    for place in places:
        if place.is_dir():
            return place
    raise ValueError(f"Expected the images of {path} in {places[0]} or {places[1]}, but there is no such folder.")


def _rows(found: dict[str, Any], folder: Path, path: Path) -> list[dict[str, Any]]:
    rows = {
        image["id"]: {"image_id": image["id"], "image": str(folder / image["file_name"]), "objects": _no_objects()}
        for image in found["images"]
    }
    for entry in found["annotations"]:
        try:
            objects = rows[entry["image_id"]]["objects"]
            objects["bbox"].append([float(number) for number in entry["bbox"]])
            objects["category"].append(entry["category_id"])
        except KeyError as error:
            raise ValueError(
                f"Expected every annotation in {path} to have the image_id of one of its images, a bbox and a "
                f"category_id, but got {str(entry)[:120]} (no {error})."
            ) from None
        width, height = entry["bbox"][2:]
        objects["area"].append(float(entry.get("area", width * height)))
        objects["iscrowd"].append(int(entry.get("iscrowd", 0)))
    first = next(iter(rows.values()))["image"]
    if not Path(first).is_file():
        raise ValueError(f"Expected the images of {path} in {folder}, but there is no {Path(first).name}.")
    return list(rows.values())


def _no_objects() -> dict[str, list[Any]]:
    return {field: [] for field in FIELDS}
