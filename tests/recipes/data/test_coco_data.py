"""Scenes with boxes: COCO's layout and tables of its schema give the same data; errors are a single line."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from cases.detection.networks import CATEGORIES, write_coco
from datasets import ClassLabel, Dataset, Features, Image, Value
from PIL import Image as PILImage

from prunerecover.recipes.data.coco_data import CocoData, SceneTransform


@pytest.fixture
def coco(tmp_path: Path) -> Path:
    return write_coco(tmp_path / "coco")


def opened(path: Path, **kwargs: Any) -> CocoData:
    data = CocoData(str(path), **{"batch_size": 4, "num_workers": 0, "augment": False, **kwargs})
    data.prepare_data()
    data.setup("fit")
    return data


def annotations(path: Path, split: str = "val2017") -> dict[str, Any]:
    return json.loads((path / "annotations" / f"instances_{split}.json").read_text())  # type: ignore[no-any-return]


def test_objects_are_those_of_the_file(coco: Path) -> None:
    """Labels count the categories, whose ids are kept."""
    data = opened(coco)
    _, targets = next(iter(data.val_dataloader()))
    assert data.categories == CATEGORIES
    ids = list(data.categories)
    found = [
        (*box.tolist(), float(target["area"][i]), int(target["iscrowd"][i]), ids[target["labels"][i]])
        for target in targets
        for i, box in enumerate(target["boxes"])
    ]
    wanted = [
        (x, y, x + w, y + h, pytest.approx(entry["area"]), entry["iscrowd"], entry["category_id"])
        for entry in annotations(coco)["annotations"]
        for x, y, w, h in [entry["bbox"]]
    ]
    assert found == wanted
    assert any(crowd for *_, crowd, _ in found)


def test_images_without_objects_stay(coco: Path) -> None:
    images, targets = next(iter(opened(coco).val_dataloader()))
    assert len(images) == len(targets) == 4
    assert [tuple(image.shape) for image in images[:2]] == [(3, 48, 64), (3, 56, 56)]
    assert targets[0]["boxes"].shape == (0, 4)
    assert targets[0]["labels"].shape == targets[0]["area"].shape == targets[0]["iscrowd"].shape == (0,)


def test_colours_stay_in_their_boxes_when_scenes_are_augmented(coco: Path) -> None:
    data = opened(coco, augment=True)
    torch.manual_seed(0)
    seen = 0
    for _ in range(5):
        for images, targets in data.train_dataloader():
            for image, target in zip(images, targets, strict=True):
                assert image.dtype == torch.float32
                for (left, top, right, bottom), label in zip(
                    target["boxes"].int().tolist(), target["labels"], strict=True
                ):
                    inside = image[:, top + 1 : bottom - 1, left + 1 : right - 1].flatten(1)
                    if len(target["labels"]) == 1 and inside.numel():  # none covers it
                        seen += 1
                        assert inside.mean(1).max() - inside.mean(1).min() > 0.3, label
    assert seen > 5


def test_the_longest_side_can_be_set(coco: Path) -> None:
    loaders = (opened(coco, image_size=size).val_dataloader() for size in (None, 32))
    (whole, targets), (small, fewer) = (next(iter(loader)) for loader in loaders)
    for image, target, less, smaller in zip(whole, targets, small, fewer, strict=True):
        assert max(less.shape) == 32
        scale = 32 / max(image.shape)
        torch.testing.assert_close(smaller["boxes"], target["boxes"] * scale, atol=0.5, rtol=0)
        torch.testing.assert_close(smaller["area"], target["area"] * scale**2)


def parquet(folder: Path, coco: Path, bbox_format: str = "xywh") -> Path:
    """Write a split of COCO in the hub's form, with names of categories instead of ids."""
    found = annotations(coco)
    rows = []
    for image in found["images"]:
        objects = [entry for entry in found["annotations"] if entry["image_id"] == image["id"]]
        corners = bbox_format == "xyxy"
        boxes = [[x, y, w + corners * x, h + corners * y] for x, y, w, h in (o["bbox"] for o in objects)]
        labels = [list(CATEGORIES).index(entry["category_id"]) for entry in objects]
        path = str(coco / "val2017" / image["file_name"])
        rows.append({"image": path, "objects": {"bbox": boxes, "category": labels}})
    names = ClassLabel(names=list(CATEGORIES.values()))
    features = Features({"image": Image(), "objects": {"bbox": [[Value("float64")]], "category": [names]}})
    folder.mkdir()
    Dataset.from_list(rows, features=features).to_parquet(str(folder / "train.parquet"))
    return folder


@pytest.mark.parametrize("bbox_format", ["xywh", "xyxy"])
def test_a_table_of_the_hub_gives_the_same(coco: Path, tmp_path: Path, own_cache: Path, bbox_format: Any) -> None:
    data = opened(parquet(tmp_path / "table", coco, bbox_format), bbox_format=bbox_format)
    assert data.categories == dict(enumerate(CATEGORIES.values()))
    wanted = opened(coco).datasets["val"]
    rows = data.datasets["train"]
    for i in range(4):
        torch.testing.assert_close(rows[i][0], wanted[i][0])
        assert all(torch.equal(rows[i][1][key], wanted[i][1][key]) for key in ("boxes", "labels"))


def broken(coco: Path, **changes: Any) -> Path:
    path = coco / "annotations" / "instances_train2017.json"
    found = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in found.items() if value is not None}))
    return coco


def cut_off(coco: Path) -> None:
    path = coco / "annotations" / "instances_val2017.json"
    path.write_text(path.read_text()[:100])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (partial(broken, annotations=None), "train2017.json, as COCO has them, but annotations is missing; it has"),
        (partial(broken, images=[]), r"Expected images in .*instances_train2017.json, but its list is empty"),
        (partial(broken, annotations=[{"id": 1, "image_id": 5}]), "the image_id of one of its images, a bbox and a ca"),
        (partial(broken, images=[{"id": 1, "file_name": "none.png"}], annotations=[]), "but there is no none.png"),
        (cut_off, "Expected JSON at .*instances_val2017.json, but it cannot be read"),
        (lambda coco: (coco / "val2017").rename(coco / "v"), "the images of .* in .*val2017 or .*images/val2017, but"),
    ],
)
def test_folders_that_are_refused(coco: Path, change: Callable[[Path], object], message: str) -> None:
    change(coco)
    with pytest.raises(ValueError, match=message):
        opened(coco)


def test_a_split_without_any_box_is_fine(coco: Path) -> None:
    _, targets = next(iter(opened(broken(coco, annotations=[])).train_dataloader()))
    assert all(target["boxes"].shape == (0, 4) for target in targets)


def test_a_category_of_no_split_is_refused(coco: Path) -> None:
    entry = {"id": 1, "image_id": 100, "category_id": 90, "bbox": [0, 0, 4, 4]}
    data = opened(broken(coco, annotations=[entry]))
    with pytest.raises(ValueError, match="categories among 3, 17, 18, but an object is of 90.*This is row 0 of"):
        next(iter(data.train_dataloader()))


def test_other_columns_are_listed(coco: Path, tmp_path: Path, own_cache: Path) -> None:
    table = parquet(tmp_path / "table", coco)
    with pytest.raises(ValueError, match=r"named .targets., but the data has image, objects\. Set objects_column"):
        opened(table, objects_column="targets")


def test_objects_without_boxes_are_refused(tmp_path: Path, own_cache: Path) -> None:
    rows = [{"image": {"bytes": b"", "path": None}, "objects": {"category": [1]}}]
    Dataset.from_list(rows).to_parquet(str(tmp_path / "train.parquet"))
    with pytest.raises(ValueError, match=r"with bbox or boxes or bboxes in column 'objects', .* but it has category"):
        opened(tmp_path)


def test_an_unknown_format_of_boxes_is_refused(coco: Path) -> None:
    with pytest.raises(ValueError, match="Expected bbox_format to be 'xywh' or 'xyxy', but got 'cxcywh'"):
        CocoData(str(coco), bbox_format="cxcywh")  # type: ignore[arg-type]


def test_evaluation_neither_moves_nor_clips_boxes() -> None:
    boxes = torch.tensor([[-3.0, 2.0, 5.0, 30.0], [4.0, 4.0, 4.0, 9.0]])
    target = {"boxes": boxes, "labels": torch.zeros(2), "area": torch.ones(2), "iscrowd": torch.zeros(2)}
    _, found = SceneTransform(None, training=False)(PILImage.new("RGB", (20, 10)), target)
    assert torch.equal(found["boxes"], boxes)
    assert type(found["boxes"]) is torch.Tensor
