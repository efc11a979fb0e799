"""Networks of ultralytics by its YAML files; the package is no dependency of the project (AGPL-3.0)."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

os.environ.setdefault("YOLO_OFFLINE", "true")

from torch import nn  # noqa: E402
from ultralytics.nn import tasks  # noqa: E402

from benchmarks.zoo.networks.network import CLASSES, Network, images, squares  # noqa: E402

DETECTORS = (
    *("yolov3-tiny", "yolov5n", "yolov6n", "yolov8n", "yolov8n-ghost", "yolov8n-p2", "yolov9t", "yolov10n"),
    *("yolo11n", "yolo12n", "yolo26n"),
)
OTHERS = {"yolov8n-seg": "SegmentationModel", "yolov8n-pose": "PoseModel", "yolo11n-obb": "OBBModel"}
CLASSIFIERS = ("yolov8n-cls", "yolo11n-cls")


def networks() -> list[Network]:
    """Return the suite."""
    return [
        *(Network(name, _model("DetectionModel", name), images(64), squares) for name in DETECTORS),
        *(Network(name, _model(cls, name), images(64), squares) for name, cls in OTHERS.items()),
        *(Network(name, _model("ClassificationModel", name, nc=CLASSES), images(64)) for name in CLASSIFIERS),
    ]


def _model(cls: str, name: str, **kwargs: Any) -> Callable[[], nn.Module]:
    return partial(getattr(tasks, cls), f"{name}.yaml", verbose=False, **kwargs)
