"""Every single layer of two large networks can go: what is left runs, learns, and is of the size predicted."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from cases.depth.removal import check_unit, removals_of
from torch import nn


def resnet50() -> nn.Module:
    import torchvision

    return torchvision.models.resnet50(num_classes=7)


def yolov5m() -> nn.Module:
    return pytest.importorskip("ultralytics").YOLO("yolov5m.yaml").model


@pytest.mark.slow
@pytest.mark.parametrize(("build", "count"), [(resnet50, 46), (yolov5m, 72)])
def test_every_layer_alone_can_go(build: Callable[[], nn.Module], count: int) -> None:
    removals = removals_of(build().eval(), torch.rand(1, 3, 32, 32), ("layer",))
    assert len(removals.units) == count
    for unit in removals.units:
        check_unit(removals, unit)
