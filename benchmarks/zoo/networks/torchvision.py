"""Networks of torchvision: classification of images and of video, segmentation, and detection."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torchvision import models
from torchvision.models.swin_transformer import PatchMergingV2, SwinTransformerBlockV2

from benchmarks.zoo.networks.network import CLASSES, MakeBatch, Network, images

# The smallest of each family, and more than one where sizes differ in structure.
CLASSIFIERS = (
    *("alexnet", "resnet18", "resnet34", "resnet50", "resnext50_32x4d", "squeezenet1_0", "squeezenet1_1"),
    *("densenet121", "shufflenet_v2_x0_5", "shufflenet_v2_x1_0", "mobilenet_v2", "mobilenet_v3_small"),
    *("mobilenet_v3_large", "mnasnet0_5", "mnasnet1_0", "efficientnet_b0", "efficientnet_b1", "efficientnet_v2_s"),
    *("regnet_x_400mf", "regnet_y_400mf", "convnext_tiny"),
)
WIDE = ("vgg11", "vgg11_bn", "wide_resnet50_2")  # on smaller images
SWIN = partial(models.SwinTransformer, [4, 4], 48, [2, 2, 2], [3, 6, 12], [4, 4], num_classes=CLASSES)
SEGMENTERS = ("fcn_resnet50", "deeplabv3_resnet50", "deeplabv3_mobilenet_v3_large", "lraspp_mobilenet_v3_large")
VIDEO = ("r3d_18", "mc3_18", "r2plus1d_18")
# Few boxes, and no threshold of scores, which untrained networks would miss.
REGIONS = {"rpn_post_nms_top_n_train": 50, "rpn_post_nms_top_n_test": 50, "box_score_thresh": 0.0}
REGIONS |= {"box_detections_per_img": 10, "min_size": 96, "max_size": 96}
ANCHORS = {"score_thresh": 0.0, "detections_per_img": 10}
DETECTORS: dict[str, dict[str, Any]] = {
    "fasterrcnn_mobilenet_v3_large_320_fpn": REGIONS,
    "fasterrcnn_resnet50_fpn": REGIONS,
    "keypointrcnn_resnet50_fpn": REGIONS,
    "maskrcnn_resnet50_fpn": REGIONS,
    "retinanet_resnet50_fpn": {**ANCHORS, "min_size": 96, "max_size": 96},
    "fcos_resnet50_fpn": {**ANCHORS, "min_size": 96, "max_size": 96},
    "ssdlite320_mobilenet_v3_large": ANCHORS,
}


def networks() -> list[Network]:
    """Return the suite."""
    classifiers = [Network(name, _model(name), images(32 if name in WIDE else 64)) for name in (*CLASSIFIERS, *WIDE)]
    with_more_outputs = [
        Network(name, _model(name, init_weights=False, aux_logits=False), images(side))
        for name, side in {"googlenet": 64, "inception_v3": 96}.items()
    ]
    vit = partial(models.VisionTransformer, 64, 16, 4, 4, 128, 256, num_classes=CLASSES)
    others = [
        Network("vit", vit, images(64)),
        Network("swin", SWIN, images(64)),
        Network("swin_v2", partial(SWIN, block=SwinTransformerBlockV2, downsample_layer=PatchMergingV2), images(64)),
        Network("maxvit", _small_maxvit, images(64)),
        *(Network(name, _model(name), images(8, 32, 32)) for name in VIDEO),
    ]
    segmenters = [Network(name, _model(name, weights_backbone=None), _pixels(64), _pixel_loss) for name in SEGMENTERS]
    detectors = [
        Network(name, _model(name, weights_backbone=None, **kwargs), _pictures(kwargs is REGIONS), _boxes_loss)
        for name, kwargs in DETECTORS.items()
    ]
    return [*classifiers, *with_more_outputs, *others, *segmenters, *detectors]


def _model(name: str, **kwargs: Any) -> Callable[..., nn.Module]:
    return partial(models.get_model, name, weights=None, num_classes=CLASSES, **kwargs)


def _small_maxvit() -> nn.Module:
    """MaxViT with windows for small images; torchvision's builder sets windows for 224 pixels."""
    sizes = {"input_size": (64, 64), "partition_size": 2, "stem_channels": 32, "head_dim": 32}
    layers = {"block_channels": [32, 64, 128, 256], "block_layers": [1, 1, 2, 1]}
    return models.MaxVit(**sizes, **layers, stochastic_depth_prob=0.2, num_classes=CLASSES)


def _pictures(alone: bool) -> MakeBatch:
    """Return a maker of lists of images and targets, as detectors take them: of a single image, or of two."""

    def batch(generator: Generator) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
        pictures = [torch.rand(3, 96, 96, generator=generator) for _ in range(1 if alone else 2)]
        return pictures, [_target(generator) for _ in pictures]

    return batch


def _target(generator: Generator) -> dict[str, Tensor]:
    """Two objects with boxes, masks and keypoints."""
    masks = torch.zeros(2, 96, 96, dtype=torch.uint8)
    masks[0, 8:40, 8:40] = masks[1, 30:80, 20:90] = 1
    boxes = torch.tensor([[8.0, 8.0, 40.0, 40.0], [20.0, 30.0, 90.0, 80.0]])
    points = boxes[:, None, :2] + 20 * torch.rand(2, 17, 2, generator=generator)
    labels = torch.randint(1, CLASSES, (2,), generator=generator)
    return {"boxes": boxes, "labels": labels, "masks": masks, "keypoints": torch.cat([points, torch.ones(2, 17, 1)], 2)}


def _boxes_loss(model: nn.Module, batch: tuple[list[Tensor], list[dict[str, Tensor]]]) -> Tensor:
    """Return the sum of a detector's losses in training mode; BatchNorm stays in its present mode."""
    modes = {module: module.training for module in model.modules() if not isinstance(module, nn.BatchNorm2d)}
    for module in modes:
        module.training = True
    losses: list[Tensor] = [*model(*batch).values()]
    for module, mode in modes.items():
        module.training = mode
    return torch.stack(losses).sum()


def _pixels(side: int) -> MakeBatch:
    def batch(generator: Generator) -> tuple[Tensor, Tensor]:
        classes = torch.randint(0, CLASSES, (4, side, side), generator=generator)
        return torch.randn(4, 3, side, side, generator=generator), classes

    return batch


def _pixel_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Cross-entropy of every pixel; segmenters of torchvision return a mapping."""
    return nn.functional.cross_entropy(model(batch[0])["out"], batch[1])
