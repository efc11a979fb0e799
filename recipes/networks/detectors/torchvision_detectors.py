"""Detectors of torchvision: SSD, SSDLite, RetinaNet and FCOS in one stage, Faster R-CNN in two.

Matching, losses, decoding and suppression are torchvision's own: its forward runs a second time, on a shallow copy with
the earlier outputs in place of backbone and head. Only the two-stage heads compute in the second run. Does not cover
masks and keypoints, with targets beyond boxes.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from prunerecover.recipes.networks.detectors.detector import Detector, Prepared, Target

STAGES = ("rpn", "roi_heads")  # stages of torchvision's two-stage detectors, with a training mode of their own


def is_one_stage(model: nn.Module) -> bool:
    """Whether a model has the structure of torchvision's SSD, RetinaNet and FCOS."""
    return all(hasattr(model, name) for name in ("transform", "backbone", "head", "anchor_generator"))


def is_two_stage(model: nn.Module) -> bool:
    """Whether a model has the structure of torchvision's Faster R-CNN."""
    return all(hasattr(model, name) for name in ("transform", "backbone", *STAGES))


class TorchvisionDetector(Detector):
    """Shared part of one-stage and two-stage detectors.

    Args:
        model: Detector of `torchvision.models.detection`.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Shape of an image after the model's transform."""
        width, height = self.model.transform.fixed_size or (min(self.model.transform.min_size),) * 2
        return 3, int(height), int(width)

    def prepare(self, images: Sequence[Tensor], targets: Sequence[Target] | None = None) -> Prepared:
        """Resize, normalise and pad as the model's transform does."""
        original = tuple((int(image.shape[-2]), int(image.shape[-1])) for image in images)
        batch, moved = self.model.transform(list(images), None if targets is None else [dict(t) for t in targets])
        return Prepared(batch.tensors, tuple(batch.image_sizes), original, moved)

    def losses(self, output: Mapping[str, Any], batch: Prepared) -> dict[str, Tensor]:
        """Return torchvision's losses."""
        return self._rest(output, batch, training=True)  # type: ignore[no-any-return]

    def detections(self, output: Mapping[str, Any], batch: Prepared) -> list[dict[str, Tensor]]:
        """Return torchvision's detections."""
        return self._rest(output, batch, training=False)  # type: ignore[no-any-return]

    @abstractmethod
    def _computed(self, output: Mapping[str, Any], batch: Prepared) -> dict[str, Any]:
        """Return the outputs of the model's modules, by their names."""

    def _rest(self, output: Mapping[str, Any], batch: Prepared, training: bool) -> Any:
        """Run torchvision's forward with the given outputs of its modules."""
        from torchvision.models.detection.image_list import ImageList

        stages = {name: _in_mode(getattr(self.model, name), training) for name in STAGES if hasattr(self.model, name)}
        forward = _in_mode(self.model, training)
        images = ImageList(batch.pixels, list(batch.sizes))
        values = {**self._computed(output, batch), "transform": (images, batch.targets)}
        given = {name: _Given(getattr(self.model, name), value) for name, value in values.items()}
        vars(forward)["_modules"] = {**self.model._modules, **stages, **given}
        return forward([torch.empty(3, *size, device="meta") for size in batch.original], batch.targets)


class OneStageDetector(TorchvisionDetector):
    """SSD, SSDLite, RetinaNet or FCOS.

    Args:
        model: Detector of `torchvision.models.detection`.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        scores = self.model.head.classification_head
        self.classes = int(scores.num_columns if hasattr(scores, "num_columns") else scores.num_classes)
        self.background = int(hasattr(scores, "num_columns"))  # SSD's softmax has a background, sigmoids do not

    def forward(self, pixels: Tensor) -> dict[str, Tensor]:
        """Return the outputs of the head, and the `(height, width)` of each level of features."""
        features = self.model.backbone(pixels)
        levels = [features] if isinstance(features, Tensor) else list(features.values())
        found = dict(self.model.head(levels))
        grids = torch.tensor([level.shape[-2:] for level in levels])
        return {"logits": found.pop("cls_logits"), **found, "grids": grids}

    def _computed(self, output: Mapping[str, Any], batch: Prepared) -> dict[str, Any]:
        found = {"cls_logits" if name == "logits" else name: value for name, value in output.items()}
        grids = found.pop("grids").tolist()
        shapes = {str(i): batch.pixels.new_empty(len(batch.pixels), 0, *grid) for i, grid in enumerate(grids)}
        return {"backbone": OrderedDict(shapes), "head": found}


class TwoStageDetector(TorchvisionDetector):
    """Faster R-CNN, with features as raw predictions: the number of regions depends on the scores.

    Args:
        model: Detector of `torchvision.models.detection`.
    """

    background = 1

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.classes = int(self.model.roi_heads.box_predictor.cls_score.out_features)

    def forward(self, pixels: Tensor) -> dict[str, Tensor]:
        """Return the features of each level, `(N, C, H, W)`."""
        features = self.model.backbone(pixels)
        return {"0": features} if isinstance(features, Tensor) else dict(features)

    def _computed(self, output: Mapping[str, Any], batch: Prepared) -> dict[str, Any]:
        return {"backbone": OrderedDict(output)}


class _Given:
    """Module replaced by its known output; attributes are the module's."""

    def __init__(self, module: Any, value: Any) -> None:
        self.module, self.value = module, value

    def __call__(self, *args: Any) -> Any:
        return self.value

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)


def _in_mode(module: Any, training: bool) -> Any:
    """Return a shallow copy of a module with its own training mode; inner modules keep their modes."""
    other = copy.copy(module)
    other.training = training
    return other
