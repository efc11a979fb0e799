"""Detector with given detections, for tests of scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from prunerecover.recipes.networks.detectors.detector import Detector, Prepared, Target, fitted


class Remembered(Detector):
    """Gives detections in turn.

    Args:
        found: Detections of every image, in order.
        classes: Classes of the head.
    """

    background = 0

    def __init__(self, found: Sequence[dict[str, Tensor]], classes: int) -> None:
        super().__init__()
        self.model = nn.Linear(1, 1)
        self.found, self.classes, self.next = list(found), classes, 0

    @property
    def input_shape(self) -> tuple[int, int, int]:
        return 3, 8, 8

    def prepare(self, images: Sequence[Tensor], targets: Sequence[Target] | None = None) -> Prepared:
        return fitted(images, targets, 8, keep_shape=True)

    def forward(self, pixels: Tensor) -> dict[str, Tensor]:
        return {"logits": self.model(pixels.mean((1, 2, 3))[:, None])}

    def losses(self, output: Mapping[str, Any], batch: Prepared) -> dict[str, Tensor]:
        return {"loss": output["logits"].mean()}

    def detections(self, output: Mapping[str, Any], batch: Prepared) -> list[dict[str, Tensor]]:
        start, self.next = self.next, self.next + len(batch.sizes)
        return self.found[start : self.next]


class Recognised(Remembered):
    """Returns the detections of known images, in any order.

    Args:
        images: Known images.
        found: Detections of each image.
        classes: Classes of the head.
    """

    def __init__(self, images: Sequence[Tensor], found: Sequence[dict[str, Tensor]], classes: int) -> None:
        super().__init__(found, classes)
        self.known = self.prepare(images).pixels

    def detections(self, output: Mapping[str, Any], batch: Prepared) -> list[dict[str, Tensor]]:
        return [self.found[int((self.known - one).square().sum((1, 2, 3)).argmin())] for one in batch.pixels]


def guessed(targets: Sequence[Target], classes: Sequence[int], generator: torch.Generator) -> list[dict[str, Tensor]]:
    """Return detections around the objects of each image: a little off, some of a wrong class, some on background."""
    found = []
    for target in targets:
        boxes = target["boxes"].repeat(2, 1)
        boxes = boxes + torch.randn(boxes.shape, generator=generator) * 0.08 * (boxes[:, 2:] - boxes[:, :2]).repeat(
            1, 2
        )
        corner = torch.rand(3, 2, generator=generator) * 60
        boxes = torch.cat([boxes, torch.cat([corner, corner + 20], 1)])
        labels = torch.tensor(classes)[torch.randint(len(classes), (len(boxes),), generator=generator)]
        right = torch.rand(len(target["labels"]) * 2, generator=generator) < 0.8
        labels[: len(right)][right] = target["labels"].repeat(2)[right]
        found.append({"boxes": boxes, "labels": labels, "scores": torch.rand(len(boxes), generator=generator)})
    return found
