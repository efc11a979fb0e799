"""Networks with a class per pixel, by name: transformers, torchvision, or a timm backbone with a decoder.

The name picks the library: one of torchvision's segmentation models (`deeplabv3_mobilenet_v3_large`); a folder or hub
id with a `model_type` in `config.json` (SegFormer, UperNet and all further semantic segmentation models of
transformers), or the type alone (`segformer`), built untrained; any other name is a timm backbone. Weights trained for
another number of classes get a new last layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from prunerecover.recipes.networks.model_names import from_pretrained, timm_name
from prunerecover.recipes.networks.segmentation_heads import LinearSegmenter, PyramidSegmenter
from prunerecover.recipes.networks.torchvision_weights import torchvision_model

Size = int | tuple[int, int]


def build_segmenter(name: str, classes: int, pretrained: bool, image_size: Size, options: dict[str, Any]) -> nn.Module:
    """Return a network with an output for `scores_of`.

    Args:
        name: Name of the network; see the module.
        classes: Number of scored classes.
        pretrained: Whether to load the pretrained weights of the name.
        image_size: Size of the images, in pixels; needed by timm's transformers only.
        options: Further arguments: of the configuration (transformers), of the constructor (torchvision) or of
            `timm.create_model`.

    Raises:
        ValueError: If the network does not exist, or its weights cannot be reached.
    """
    from torchvision.models import list_models, segmentation

    if name in list_models(module=segmentation):
        return torchvision_model(name, pretrained, {"num_classes": classes}, options)
    if _is_transformers(name):
        return _from_transformers(name, classes, pretrained, options)
    return _from_timm(name, classes, pretrained, image_size, options)


def scores_of(output: Any, size: tuple[int, int]) -> Tensor:
    """Return class scores `(N, classes, H, W)` at a size.

    Args:
        output: Output of the network: the scores, or a mapping with "logits" (transformers) or "out" (torchvision).
        size: Height and width, in pixels.
    """
    scores: Any = output
    if isinstance(output, Mapping):
        scores = output["logits"] if "logits" in output else output["out"]
    if scores.shape[-2:] == size:
        return scores  # type: ignore[no-any-return]
    return F.interpolate(scores, size, mode="bilinear")


def _is_transformers(name: str) -> bool:
    """Whether a name is a model type of transformers, or its `config.json` has a model type."""
    from timm.models import is_model
    from transformers import CONFIG_MAPPING, PreTrainedConfig

    if "/" not in name:
        return name in CONFIG_MAPPING and not is_model(name)
    if ":" in name:
        return False
    copy = "model: the path of a copy (/path as transformers saves it, local-dir:/path as timm does)"
    stored, _ = from_pretrained(PreTrainedConfig.get_config_dict, name, copy)
    return "model_type" in stored


def _from_transformers(name: str, classes: int, pretrained: bool, options: dict[str, Any]) -> nn.Module:
    from transformers import AutoConfig, AutoModelForSemanticSegmentation

    options = {"num_labels": classes, **options}
    if "/" not in name:
        if pretrained:
            raise ValueError(
                f"Expected a folder or hub id with pretrained weights, but {name!r} is only a type of network. Give "
                "one such as nvidia/segformer-b0-finetuned-ade-512-512, or set pretrained: false."
            )
        config = AutoConfig.for_model(name, **options)
    else:
        config = from_pretrained(AutoConfig.from_pretrained, name, **options)
    known: Any = AutoModelForSemanticSegmentation
    if type(config) not in known._model_mapping:
        raise ValueError(
            f"Expected a network for semantic segmentation, but {name!r} is a {config.model_type}. Try segformer or "
            "upernet, or a timm backbone by its timm name."
        )
    if not pretrained:
        return known.from_config(config)  # type: ignore[no-any-return]
    return from_pretrained(known.from_pretrained, name, config=config, ignore_mismatched_sizes=True)  # type: ignore[no-any-return]


def _from_timm(name: str, classes: int, pretrained: bool, image_size: Size, options: dict[str, Any]) -> nn.Module:
    import timm
    from timm.models import VisionTransformer

    stored = timm_name(name)
    try:
        if isinstance(timm.create_model(stored, num_classes=0), VisionTransformer):
            options = {"num_classes": 0, "global_pool": "", "img_size": image_size, **options}
            return LinearSegmenter(timm.create_model(stored, pretrained=pretrained, **options), classes)
        backbone = _with_stages(stored, {"pretrained": pretrained, "features_only": True, **options}, image_size)
    except (RuntimeError, TypeError, AttributeError) as error:
        raise ValueError(
            "Expected model to be one of torchvision's or transformers' segmenters or a timm backbone with stages, but "
            f"{name!r} cannot be made as one: {error}. Try deit_tiny_patch16_224, resnet18, segformer or "
            "deeplabv3_mobilenet_v3_large."
        ) from error
    return PyramidSegmenter(backbone, classes)


def _with_stages(name: str, options: dict[str, Any], image_size: Size) -> nn.Module:
    """Return a timm model with its stages as output; models with an argument `img_size` are given the image size."""
    import timm

    try:
        return timm.create_model(name, img_size=image_size, **options)  # type: ignore[no-any-return]
    except TypeError as error:
        if "img_size" not in str(error):
            raise
        return timm.create_model(name, **options)  # type: ignore[no-any-return]
