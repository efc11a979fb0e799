"""Construction of a detector from a name or from a model of a library."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from prunerecover.recipes.networks.detectors.detector import Detector
from prunerecover.recipes.networks.detectors.torchvision_detectors import (
    OneStageDetector,
    TwoStageDetector,
    is_one_stage,
    is_two_stage,
)
from prunerecover.recipes.networks.detectors.transformers_detector import TransformersDetector, processor_of
from prunerecover.recipes.networks.detectors.ultralytics_detector import UltralyticsDetector, is_ultralytics
from prunerecover.recipes.networks.model_names import expand, from_pretrained
from prunerecover.recipes.networks.torchvision_weights import COUNTED, torchvision_model

SIGMOIDS = ("retinanet", "fcos")  # detectors without a background class
HEADS = ("head.", "roi_heads.box_predictor.")


def detector_of(model: nn.Module, image_size: int = 640) -> Detector:
    """Return a model of torchvision, transformers or ultralytics as a `Detector` with shared weights.

    Args:
        model: Model of a library; a `Detector` is returned unchanged.
        image_size: Input size of models of transformers and ultralytics, in pixels; torchvision's models define their
            own.

    Raises:
        ValueError: If the model is of no known library.
    """
    if isinstance(model, Detector):
        return model
    if is_one_stage(model):
        return OneStageDetector(model)
    if is_two_stage(model):
        return TwoStageDetector(model)
    if hasattr(model, "loss_function") and type(model).__name__.endswith("ForObjectDetection"):
        return TransformersDetector(model, image_size, processor_of(model))
    for yolo in (model, getattr(model, "model", None)):  # `YOLO(...)` holds its network
        if isinstance(yolo, nn.Module) and is_ultralytics(yolo):
            return UltralyticsDetector(yolo, image_size)
    raise ValueError(
        "Expected a detector of torchvision (SSD, RetinaNet, FCOS, Faster R-CNN), transformers "
        f"(...ForObjectDetection) or ultralytics (YOLO(...)), but got {type(model).__name__}. For another, write "
        "a Detector of prunerecover.recipes.networks.detectors.detector."
    )


def named_detector(
    name: str, pretrained: bool, classes: int | None, image_size: int, kwargs: Mapping[str, Any]
) -> Detector:
    """Build a detector by name.

    Args:
        name: Name of a builder of torchvision, or a folder or hub id of transformers.
        pretrained: Whether to load the pretrained weights of the name.
        classes: Number of detected classes; a head of another size is made anew. None keeps the head.
        image_size: Input size; see `detector_of`.
        kwargs: Arguments of the builder, or of the model's config; `checkpoint_path` is a file with weights for
            torchvision's models.

    Raises:
        ValueError: If the model does not exist, or its weights cannot be loaded.
    """
    from torchvision.models import detection, list_models

    if name in list_models(module=detection):
        return detector_of(_of_torchvision(name, pretrained, classes, dict(kwargs)))
    return _of_transformers(name, pretrained, classes, image_size, dict(kwargs))


def _of_transformers(
    name: str, pretrained: bool, classes: int | None, image_size: int, kwargs: dict[str, Any]
) -> Detector:
    from transformers import AutoConfig, AutoModelForObjectDetection

    if "/" not in name and not Path(expand(name)).exists():
        raise ValueError(
            f"Expected model to be a detector of torchvision, such as ssdlite320_mobilenet_v3_large, a folder as "
            f"transformers saves it, or a hub id (PekingU/rtdetr_r18vd), but got {name!r}."
        )
    if classes is not None:
        kwargs["num_labels"] = classes
    if pretrained:
        opened = AutoModelForObjectDetection.from_pretrained
        model = from_pretrained(opened, name, ignore_mismatched_sizes=classes is not None, **kwargs)
    else:
        config = from_pretrained(AutoConfig.from_pretrained, name, **kwargs)
        model = AutoModelForObjectDetection.from_config(config)
    return TransformersDetector(model, image_size, processor_of(model, str(expand(name))))


def _of_torchvision(name: str, pretrained: bool, classes: int | None, kwargs: dict[str, Any]) -> nn.Module:
    path = kwargs.pop("checkpoint_path", None)
    head = {} if classes is None else {"num_classes": classes + int(not name.startswith(SIGMOIDS))}
    model = torchvision_model(name, pretrained, head, kwargs)
    if path is not None:
        _load(model, Path(expand(path)))
    return model


def _load(model: nn.Module, path: Path) -> None:
    """Load weights of the same architecture; class scores of a head for other classes stay as initialised.

    Raises:
        ValueError: If the file does not exist, or is of another architecture.
    """
    if not path.is_file():
        raise ValueError(f"Expected a file of weights at {path}, but there is none. Check checkpoint_path.")
    found: dict[str, Tensor] = load_file(path) if path.suffix == ".safetensors" else torch.load(path, weights_only=True)
    known = {name: tensor.shape for name, tensor in model.state_dict().items()}
    other = [name for name, tensor in found.items() if name in known and tensor.shape != known[name]]
    missing = [name for name in known if name not in found and not name.endswith(COUNTED)]
    wrong = missing + [name for name in found if name not in known] + [n for n in other if not n.startswith(HEADS)]
    if wrong:
        raise ValueError(
            f"Expected weights of {type(model).__name__} at {path}, but {len(wrong)} tensors do not fit, such as "
            f"{wrong[0]}. Are they of another architecture?"
        )
    model.load_state_dict({name: tensor for name, tensor in found.items() if name not in other}, strict=False)
    if other:
        warnings.warn(
            f"The weights at {path} are for other classes: {', '.join(other[:3])} and what else scores classes stay "
            "untrained.",
            stacklevel=2,
        )
