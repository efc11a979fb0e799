"""A detector in parts computes the same as its library's whole detector."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cases.detection.networks import TINY, scenes, tiny_yolo
from torch import nn

from prunerecover.recipes.networks.detectors.build import detector_of
from prunerecover.recipes.networks.detectors.detector import Detector, fitted, relative_centres

TORCHVISION = ("ssd", "retinanet", "fcos", "faster_rcnn")
TRANSFORMERS = ("detr", "rt_detr", "yolos")


def built(name: str) -> Detector:
    torch.manual_seed(0)
    return detector_of(TINY[name](), image_size=64)


def shifted(detector: Detector, targets: list[dict[str, torch.Tensor]]) -> list[dict[str, torch.Tensor]]:
    return [{**target, "labels": target["labels"] + detector.background} for target in targets]


@pytest.mark.parametrize("name", TORCHVISION)
def test_detections_are_torchvisions(name: str) -> None:
    detector, (images, _) = built(name).eval(), scenes()
    with torch.no_grad():
        whole: Any = detector.model(images)
        batch = detector.prepare(images)
        parts = detector.detections(detector(batch.pixels), batch)
    assert sum(len(one["boxes"]) for one in whole)
    for one, other in zip(whole, parts, strict=True):
        assert all(torch.equal(one[key], other[key]) for key in ("boxes", "scores", "labels"))


@pytest.mark.parametrize("name", TORCHVISION)
def test_losses_are_torchvisions(name: str) -> None:
    detector, (images, targets) = built(name).train(), scenes()
    targets = shifted(detector, targets)
    torch.manual_seed(1)  # Faster R-CNN draws the regions that it learns from
    whole: Any = detector.model(images, targets)
    torch.manual_seed(1)
    batch = detector.prepare(images, targets)
    parts = detector.losses(detector(batch.pixels), batch)
    assert whole.keys() == parts.keys()
    for key in whole:
        torch.testing.assert_close(parts[key], whole[key])


@pytest.mark.parametrize("name", TRANSFORMERS)
@pytest.mark.parametrize("training", [True, False])
def test_the_loss_is_transformers(name: str, training: bool) -> None:
    detector, (images, targets) = built(name).train(training), scenes()
    model: Any = detector.model
    if training and name == "rt_detr":
        model.config.num_denoising = 0  # it adds queries that only labels tell
    batch = detector.prepare(images, targets)
    assert batch.targets is not None
    pairs = zip(batch.targets, batch.sizes, strict=True)
    labels = [{"class_labels": t["labels"], "boxes": relative_centres(t["boxes"], size)} for t, size in pairs]
    (found,) = detector.losses(detector(batch.pixels), batch).values()
    if not training:
        model.config.auxiliary_loss = False  # layers before the last are of no use to those who do not train
    torch.testing.assert_close(found, model(pixel_values=batch.pixels, labels=labels).loss)


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_detections_are_in_pixels_of_the_image(name: str) -> None:
    detector, (images, _) = built(name).eval(), scenes()
    batch = detector.prepare(images)
    with torch.no_grad():
        output = detector(batch.pixels)
        found = detector.detections(output, batch)
    for one, image, boxes in zip(found, images, output["pred_boxes"], strict=True):
        width = (one["boxes"][:, 2] - one["boxes"][:, 0]).sort().values
        wanted = boxes[:, 2].sort().values * image.shape[-1]
        assert torch.isin(width.round(decimals=2), wanted.round(decimals=2)).all()
        assert one["scores"].shape == one["labels"].shape == width.shape


@pytest.mark.parametrize("name", TINY)
def test_losses_in_evaluation_leave_the_detector_as_it_was(name: str) -> None:
    detector, (images, targets) = built(name).eval(), scenes()
    before = {key: value.clone() for key, value in detector.state_dict().items()}
    batch = detector.prepare(images, shifted(detector, targets))
    losses = detector.losses(detector(batch.pixels), batch)
    sum(losses.values()).backward()  # type: ignore[union-attr]
    assert all(loss.isfinite() for loss in losses.values())
    assert not any(module.training for module in detector.modules())
    assert all(torch.equal(value, before[key]) for key, value in detector.state_dict().items())
    batch = detector.train().prepare(*scenes(1))  # without objects
    assert all(loss.isfinite() for loss in detector.losses(detector(batch.pixels), batch).values())


@pytest.mark.parametrize("keep_shape", [True, False])
def test_boxes_follow_their_image_into_the_square(keep_shape: bool) -> None:
    image = torch.zeros(3, 20, 40)
    image[:, 10:20, 20:40] = 1
    target = {"boxes": torch.tensor([[20.0, 10.0, 40.0, 20.0]]), "labels": torch.tensor([0])}
    batch = fitted([image], [target], 80, keep_shape=keep_shape, fill=0.5)
    assert batch.targets is not None
    left, top, right, bottom = batch.targets[0]["boxes"][0].int().tolist()
    assert (left, right) == (40, 80)
    assert (top, bottom) == ((20, 40) if keep_shape else (40, 80))
    assert batch.pixels[0, :, top + 2 : bottom - 2, left + 2 : right - 2].min() == 1
    assert batch.pixels[0, 0, 79, 0] == (0.5 if keep_shape else 0)


def test_what_is_no_detector_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Expected a detector of torchvision .* ultralytics .* but got Linear\."):
        detector_of(nn.Linear(2, 2))


def test_a_yolo_by_duck_typing() -> None:
    pytest.importorskip("ultralytics")
    torch.manual_seed(0)
    detector, (images, targets) = detector_of(tiny_yolo(), image_size=64), scenes()
    batch = detector.prepare(images, targets)
    (loss,) = detector.train().losses(detector(batch.pixels), batch).values()
    loss.backward()
    assert loss.isfinite()
    with torch.no_grad():
        output = detector.eval()(batch.pixels)
        found = detector.detections(output, batch)
        (loss,) = detector.losses(output, batch).values()
    assert loss.isfinite()
    assert all(one["boxes"].shape == (len(one["scores"]), 4) for one in found)
