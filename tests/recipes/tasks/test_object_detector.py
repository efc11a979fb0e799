"""The detector trains, is pruned and scored like any other module; its mAP is COCO's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from cases.detection.networks import CATEGORIES, scenes, tiny_ssd, tiny_yolo, write_coco
from cases.detection.remembered import Remembered, guessed

from prunerecover import Budget, load_pruned
from prunerecover.callbacks import DepthPrune, DistillRecover, PruneReport, WidthPrune
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.recipes.data.coco_data import CocoData
from prunerecover.recipes.networks.detectors.build import detector_of
from prunerecover.recipes.tasks import object_detector
from prunerecover.recipes.tasks.object_detector import ObjectDetector, head_classes

QUIET = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}


@pytest.fixture
def coco(tmp_path: Path) -> Path:
    return write_coco(tmp_path / "coco")


def opened(path: Path, **kwargs: Any) -> CocoData:
    return CocoData(str(path), **{"batch_size": 4, "num_workers": 0, **kwargs})


def by_pycocotools(annotations: Path, detections: list[dict[str, Any]]) -> np.ndarray:
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    truth = COCO(str(annotations))
    evaluation = COCOeval(truth, truth.loadRes(detections), "bbox")
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    return evaluation.stats  # type: ignore[no-any-return]


def assert_map_is_cocos(root: Path, head: int, index: list[int]) -> None:
    """Compare on the validation split.

    Args:
        root: Folder in COCO's layout.
        head: Classes of the head.
        index: The head's class of each category.
    """
    path = root / "annotations" / "instances_val2017.json"
    data = opened(root)
    data.setup("validate")
    rows: Any = data.datasets["val"]
    targets = [{**target, "labels": torch.tensor(index)[target["labels"]]} for _, target in rows]
    found = guessed(targets, index, torch.Generator().manual_seed(1))
    ids = [image["id"] for image in json.loads(path.read_text())["images"]]
    listed = [
        {
            "image_id": ids[i],
            "category_id": list(data.categories)[index.index(int(label))],
            "bbox": [left, top, right - left, bottom - top],
            "score": float(score),
        }
        for i, one in enumerate(found)
        for (left, top, right, bottom), score, label in zip(
            one["boxes"].tolist(), one["scores"], one["labels"], strict=True
        )
    ]
    module = ObjectDetector(Remembered(found, head))
    scores = pl.Trainer(**QUIET).validate(module, opened(root), verbose=False)[0]
    wanted = by_pycocotools(path, listed)
    assert 0.05 < scores["val_map"] < 0.9
    assert [scores[f"val_{name}"] for name in ("map", "map_50", "map_75")] == pytest.approx(wanted[:3], abs=1e-6)


@pytest.mark.parametrize(("head", "index"), [(3, [0, 1, 2]), (19, list(CATEGORIES))])
def test_the_map_is_pycocotools(tmp_path: Path, head: int, index: list[int]) -> None:
    assert_map_is_cocos(write_coco(tmp_path / "coco", train=1, val=20), head, index)


@pytest.mark.data
def test_the_map_of_real_scenes_is_pycocotools(data_root: Path) -> None:
    assert_map_is_cocos(data_root / "data" / "coco128", 80, list(range(80)))


def test_both_back_ends_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    _, targets = scenes(8)
    found = guessed(targets, [0, 1, 2], torch.Generator().manual_seed(0))
    metrics = [object_detector.mean_average_precision()]
    monkeypatch.setattr(object_detector, "BACKENDS", ("pycocotools",))
    metrics.append(object_detector.mean_average_precision())
    for metric in metrics:
        metric.update(found, targets)
    one, other = (metric.compute()["map"] for metric in metrics)
    torch.testing.assert_close(one, other, atol=1e-6, rtol=0)


def test_without_a_back_end_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_detector, "BACKENDS", ("no_such_library",))
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'prunerecover\[detection\]'"):
        ObjectDetector(tiny_ssd())


@pytest.mark.parametrize(("classes", "wanted"), [(3, [1, 2, 3]), (18, [3, 17, 18])])
def test_a_head_is_for_categories_in_order_or_for_their_ids(classes: int, wanted: list[int]) -> None:
    assert head_classes(detector_of(tiny_ssd(classes)), [3, 17, 18]).tolist() == wanted


def test_a_head_of_other_classes_is_refused(coco: Path) -> None:
    with pytest.raises(ValueError, match=r"for the 3 categories .* up to 18, but SSD scores 6 classes.*classes=3"):
        pl.Trainer(**QUIET).validate(ObjectDetector(tiny_ssd(5)), opened(coco), verbose=False)


def test_labels_of_no_class_are_refused() -> None:
    images, targets = scenes()
    targets[1]["labels"][:] = 3
    with pytest.raises(ValueError, match="Expected labels from 0 to 2, as the head detects 3 categories, but got 3"):
        ObjectDetector(tiny_ssd()).training_step((images, targets), 0)


def test_crowds_and_boxes_of_no_size_are_not_learned() -> None:
    images, targets = scenes(3)
    module = ObjectDetector(tiny_ssd()).eval()
    plain = module.training_step((images, [{**t, "iscrowd": torch.zeros(len(t["labels"]))} for t in targets]), 0)
    for target in targets:
        more = torch.tensor([[1.0, 1.0, 9.0, 9.0], [5.0, 5.0, 5.0, 9.0]])
        target["iscrowd"] = torch.cat([torch.zeros(len(target["labels"])), torch.tensor([1.0, 0.0])])
        target["boxes"] = torch.cat([target["boxes"], more])
        target["labels"] = torch.cat([target["labels"], torch.zeros(2, dtype=torch.long)])
    assert torch.equal(module.training_step((images, targets), 0), plain)


def fitted(coco: Path, folder: Path, network: Any, *callbacks: Any) -> tuple[ObjectDetector, pl.Trainer]:
    torch.manual_seed(0)
    module = ObjectDetector(network, image_size=64)
    trainer = pl.Trainer(max_epochs=2, default_root_dir=folder, callbacks=list(callbacks), **QUIET)
    trainer.fit(module, opened(coco))
    return module, trainer


def removed_from(module: ObjectDetector) -> list[str]:
    return [name for units in Ledger.of(module).plans["network"].removed.values() for name in units]


@pytest.mark.slow
def test_a_fit_ends_in_a_report_and_a_folder(coco: Path, tmp_path: Path) -> None:
    prune = WidthPrune(Budget(macs=0.2), schedule=1, calibration=8)
    report = PruneReport(pairs=0)
    module, trainer = fitted(coco, tmp_path, tiny_ssd(), prune, DistillRecover(), report)
    text = (tmp_path / "report" / "report.md").read_text()
    assert "val_map" in text
    checkpoint = Path(trainer.checkpoint_callback.best_model_path)  # type: ignore[union-attr]
    network = load_pruned(checkpoint.parent / "pruned", detector_of(tiny_ssd())).eval()
    images, _ = scenes()
    with torch.no_grad():
        wanted = module.eval()(images)
        batch = network.prepare(images)  # type: ignore[operator]
        found = network.detections(network(batch.pixels), batch)  # type: ignore[operator]
        whole = network.model(images)  # type: ignore[operator]
    for one, other, theirs in zip(wanted, found, whole, strict=True):
        torch.testing.assert_close(one["scores"], other["scores"], atol=1e-5, rtol=1e-4)
        assert torch.equal(other["scores"], theirs["scores"])
    again = pl.Trainer(callbacks=[WidthPrune(Budget(macs=0.2))], **QUIET)
    scores = again.validate(ObjectDetector(tiny_ssd()), opened(coco), ckpt_path=str(checkpoint), verbose=False)
    assert scores[0]["val_loss"] == pytest.approx(float(trainer.callback_metrics["val_loss"]), rel=1e-5)


@pytest.mark.slow
def test_the_neck_stays_if_it_is_ignored(coco: Path, tmp_path: Path) -> None:
    prune = DepthPrune(remove={"layer": 2}, search="one_shot", ignore=["*.neck.*"], calibration=8)
    module, _ = fitted(coco, tmp_path, tiny_ssd(), prune)
    assert len(removed_from(module)) == 2
    assert all("body" in name or "deep" in name for name in removed_from(module))


@pytest.mark.slow
def test_a_yolo_of_ultralytics_is_pruned(coco: Path, tmp_path: Path) -> None:
    pytest.importorskip("ultralytics")
    prune = WidthPrune(Budget(macs=0.1), schedule=1, calibration=8)
    module, _ = fitted(coco, tmp_path, tiny_yolo(), prune, DistillRecover())
    assert removed_from(module)
