"""Networks of torchvision: classification of images and of video, segmentation, and detection."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torchvision import models
from torchvision.models.swin_transformer import PatchMergingV2, SwinTransformerBlockV2

from benchmarks.width.zoo_networks.network import CLASSES, MakeBatch, Network, images, squares

# The smallest of each family, and more than one where sizes differ in structure; the side of the images.
CLASSIFIERS = {
    "alexnet": 64,
    "vgg11": 32,
    "vgg11_bn": 32,
    "resnet18": 64,
    "resnet34": 64,
    "resnet50": 64,
    "resnext50_32x4d": 64,
    "wide_resnet50_2": 32,
    "squeezenet1_0": 64,
    "squeezenet1_1": 64,
    "densenet121": 64,
    "shufflenet_v2_x0_5": 64,
    "shufflenet_v2_x1_0": 64,
    "mobilenet_v2": 64,
    "mobilenet_v3_small": 64,
    "mobilenet_v3_large": 64,
    "mnasnet0_5": 64,
    "mnasnet1_0": 64,
    "efficientnet_b0": 64,
    "efficientnet_b1": 64,
    "efficientnet_v2_s": 64,
    "regnet_x_400mf": 64,
    "regnet_y_400mf": 64,
    "convnext_tiny": 64,
}
SWIN = partial(models.SwinTransformer, [4, 4], 48, [2, 2, 2], [3, 6, 12], [4, 4], num_classes=CLASSES)
SEGMENTERS = ("fcn_resnet50", "deeplabv3_resnet50", "deeplabv3_mobilenet_v3_large", "lraspp_mobilenet_v3_large")
VIDEO = ("r3d_18", "mc3_18", "r2plus1d_18")
DETECTORS = {
    "fasterrcnn_mobilenet_v3_large_320_fpn": 96,
    "fasterrcnn_resnet50_fpn": 96,
    "keypointrcnn_resnet50_fpn": 96,
    "maskrcnn_resnet50_fpn": 96,
    "retinanet_resnet50_fpn": 96,
    "fcos_resnet50_fpn": 96,
    "ssdlite320_mobilenet_v3_large": 320,
}


def networks() -> list[Network]:
    """Return the suite."""
    classifiers = [Network(name, _model(name), images(side)) for name, side in CLASSIFIERS.items()]
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
    detectors = [Network(name, _detector(name, side), _pictures(side), squares) for name, side in DETECTORS.items()]
    return [*classifiers, *with_more_outputs, *others, *segmenters, *detectors]


def _model(name: str, **kwargs: Any) -> Callable[..., nn.Module]:
    return partial(models.get_model, name, weights=None, num_classes=CLASSES, **kwargs)


def _small_maxvit() -> nn.Module:
    """MaxViT with windows that fit small images; its builder sets them for 224 pixels."""
    sizes = {"input_size": (64, 64), "partition_size": 2, "stem_channels": 32, "head_dim": 32}
    layers = {"block_channels": [32, 64, 128, 256], "block_layers": [1, 1, 2, 1]}
    return models.MaxVit(**sizes, **layers, stochastic_depth_prob=0.2, num_classes=CLASSES)


def _detector(name: str, side: int) -> Callable[[], nn.Module]:
    sizes = {} if name.startswith("ssd") else {"min_size": side, "max_size": side}
    return _model(name, weights_backbone=None, **sizes)


def _pictures(side: int) -> MakeBatch:
    """Return what makes lists of images, as detectors take them."""

    def batch(generator: Generator) -> tuple[list[Tensor]]:
        return ([torch.rand(3, side, side, generator=generator) for _ in range(2)],)

    return batch


def _pixels(side: int) -> MakeBatch:
    def batch(generator: Generator) -> tuple[Tensor, Tensor]:
        classes = torch.randint(0, CLASSES, (4, side, side), generator=generator)
        return torch.randn(4, 3, side, side, generator=generator), classes

    return batch


def _pixel_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Cross-entropy of every pixel; segmenters of torchvision return a mapping."""
    return nn.functional.cross_entropy(model(batch[0])["out"], batch[1])
