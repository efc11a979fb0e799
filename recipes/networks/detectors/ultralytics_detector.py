"""Detectors of ultralytics by duck typing, without importing the library.

A suitable module returns the loss of a batch in ultralytics' form from `loss(batch, predictions)`, has the number of
classes in its last part, and in evaluation returns boxes and scores: `(N, 4 + classes, boxes)`, or `(N, boxes, 6)` if
the network suppresses duplicates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from prunerecover.recipes.networks.detectors.detector import (
    Prepared,
    SquareDetector,
    Target,
    fitted,
    relative_centres,
    scale_of,
)

GREY = 114 / 255  # around images
WEIGHTS = {"box": 7.5, "cls": 0.5, "dfl": 1.5, "epochs": 100}  # ultralytics' defaults of the parts of its loss
LOWEST, OVERLAP, MOST = 0.001, 0.7, 300  # ultralytics' values in validation


def is_ultralytics(model: nn.Module) -> bool:
    """Whether a model has the members used here."""
    parts = getattr(model, "model", None)
    return callable(getattr(model, "loss", None)) and isinstance(parts, nn.Sequential) and hasattr(parts[-1], "nc")


class UltralyticsDetector(SquareDetector):
    """YOLO of ultralytics.

    Args:
        model: Network, `YOLO(weights).model`.
        image_size: Height and width of the network's input, in pixels: a multiple of 32.
    """

    def __init__(self, model: nn.Module, image_size: int) -> None:
        super().__init__(model, image_size)
        self.classes = int(self.model.model[-1].nc)
        given = getattr(model, "args", None) or {}
        self.model.args = SimpleNamespace(**WEIGHTS | (given if isinstance(given, dict) else vars(given)))
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(".dfl." not in name)  # files hold frozen weights; the bins of boxes stay frozen

    def prepare(self, images: Sequence[Tensor], targets: Sequence[Target] | None = None) -> Prepared:
        """Resize to squares with grey padding."""
        return fitted(images, targets, self.image_size, keep_shape=True, fill=GREY)

    def forward(self, pixels: Tensor) -> dict[str, Any]:
        """Return the `raw` predictions, their `logits`, and in evaluation the `decoded` boxes and scores."""
        output = self.model(pixels)
        decoded, raw = output if isinstance(output, tuple) else (None, output)
        logits = _logits(raw)
        found = {} if logits is None else {"logits": logits}
        return {**found, "raw": raw} if decoded is None else {**found, "decoded": decoded, "raw": raw}

    def losses(self, output: Mapping[str, Any], batch: Prepared) -> dict[str, Tensor]:
        """Return the model's loss."""
        assert batch.targets is not None, "losses are of batches with targets"
        square = (self.image_size, self.image_size)
        counts = torch.tensor([len(target["boxes"]) for target in batch.targets], device=batch.pixels.device)
        labels = {
            "img": batch.pixels,
            "batch_idx": torch.arange(len(counts), device=counts.device).repeat_interleave(counts).float(),
            "cls": torch.cat([target["labels"] for target in batch.targets]).float(),
            "bboxes": torch.cat([relative_centres(target["boxes"], square) for target in batch.targets]),
        }
        loss, _ = self.model.loss(labels, output["raw"])
        return {"loss": loss.sum() / len(batch.pixels)}  # ultralytics multiplies by the batch's size

    def detections(self, output: Mapping[str, Any], batch: Prepared) -> list[dict[str, Tensor]]:
        """Return the decoded boxes after suppression."""
        found = []
        for predicted, size, original in zip(output["decoded"], batch.sizes, batch.original, strict=True):
            boxes, scores, labels = _suppressed(predicted, self.classes)
            found.append({"boxes": boxes / scale_of(size, original).to(boxes), "scores": scores, "labels": labels})
        return found


def _logits(raw: Any) -> Tensor | None:
    """Return the class scores before the sigmoid, `(N, boxes, classes)`; None in versions without named scores."""
    while isinstance(raw, Mapping) and "scores" not in raw and "one2one" in raw:
        raw = raw["one2one"]
    scores = raw.get("scores") if isinstance(raw, Mapping) else None
    return scores.transpose(1, 2) if isinstance(scores, Tensor) else None


def _suppressed(predicted: Tensor, classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return boxes, scores and labels of an image; duplicates of a class are suppressed unless the network did."""
    from torchvision.ops import batched_nms, box_convert

    if predicted.shape[-1] == 6 and predicted.shape[0] != 4 + classes:
        return predicted[:, :4], predicted[:, 4], predicted[:, 5].long()
    index, labels = (predicted[4:].T > LOWEST).nonzero().T
    scores = predicted[4 + labels, index]
    boxes = box_convert(predicted[:4].T[index], "cxcywh", "xyxy")
    kept = batched_nms(boxes, scores, labels, OVERLAP)[:MOST]
    return boxes[kept], scores[kept], labels[kept]
