"""Small detectors of each library with random weights, and scenes for them."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.ops import Conv2dNormActivation

CATEGORIES = {3: "car", 17: "cat", 18: "dog"}  # as COCO numbers them


class Pyramid(nn.Module):
    """Backbone and neck; two levels of features, with the second also added into the first."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.out_channels = width
        conv = partial(Conv2dNormActivation, kernel_size=3)
        self.body = nn.Sequential(conv(3, 8, stride=4), conv(8, 8), conv(8, 16, stride=2))
        self.deep = nn.Sequential(conv(16, 16, stride=2), conv(16, 16))
        self.neck = nn.ModuleList([nn.Conv2d(16, width, 1), nn.Conv2d(16, width, 1)])

    def forward(self, x: Tensor) -> OrderedDict[str, Tensor]:
        fine = self.body(x)
        coarse = self.neck[1](self.deep(fine))
        fine = self.neck[0](fine) + nn.functional.interpolate(coarse, fine.shape[-2:])
        return OrderedDict([("0", fine), ("1", coarse)])


def tiny_ssd(classes: int = 3) -> nn.Module:
    from torchvision.models.detection.anchor_utils import DefaultBoxGenerator
    from torchvision.models.detection.ssd import SSD, SSDHead

    anchors = DefaultBoxGenerator([[2], [2]], scales=[0.2, 0.5, 0.9])
    head = SSDHead([16, 16], anchors.num_anchors_per_location(), classes + 1)
    return SSD(Pyramid(), anchors, (64, 64), classes + 1, head=head)


SIZES = {"min_size": 64, "max_size": 96}


def _anchors(sizes: tuple[int, int] = (16, 32), ratios: tuple[float, ...] = (0.5, 1.0, 2.0)) -> Any:
    from torchvision.models.detection.anchor_utils import AnchorGenerator

    return AnchorGenerator(tuple((size,) for size in sizes), (ratios,) * 2)


def tiny_retinanet(classes: int = 3) -> nn.Module:
    from torchvision.models.detection import RetinaNet

    return RetinaNet(Pyramid(), classes, anchor_generator=_anchors(), score_thresh=0.0, **SIZES)


def tiny_fcos(classes: int = 3) -> nn.Module:
    from torchvision.models.detection import FCOS

    return FCOS(Pyramid(32), classes, anchor_generator=_anchors((8, 16), (1.0,)), score_thresh=0.0, **SIZES)


def tiny_faster_rcnn(classes: int = 3) -> nn.Module:
    from torchvision.models.detection import FasterRCNN
    from torchvision.ops import MultiScaleRoIAlign

    pool = MultiScaleRoIAlign(["0", "1"], 3, 2)
    few = {"rpn_post_nms_top_n_test": 20, "box_score_thresh": 0.0}
    return FasterRCNN(Pyramid(), classes + 1, rpn_anchor_generator=_anchors(), box_roi_pool=pool, **few, **SIZES)


TRANSFORMER = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 2, "num_queries": 10, "dropout": 0.0}
TRANSFORMER |= dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2)
TRANSFORMER |= dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 32)
TRANSFORMER |= dict.fromkeys(("attention_dropout", "activation_dropout"), 0.0)
STAGES: dict[str, Any] = {
    "embedding_size": 8,
    "hidden_sizes": [8, 16, 16, 32],
    "depths": [1] * 4,
    "layer_type": "basic",
}


def tiny_detr(classes: int = 3) -> Any:
    from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig

    backbone = ResNetConfig(**STAGES, out_features=["stage4"])
    return DetrForObjectDetection(DetrConfig(backbone_config=backbone, num_labels=classes, **TRANSFORMER))


def tiny_rtdetr(classes: int = 3) -> Any:
    from transformers import RTDetrConfig, RTDetrForObjectDetection, RTDetrResNetConfig

    backbone = RTDetrResNetConfig(**STAGES, out_features=["stage2", "stage3", "stage4"])
    sizes = {"encoder_hidden_dim": 16, "encoder_in_channels": [16, 16, 32], "decoder_in_channels": [16] * 3}
    return RTDetrForObjectDetection(RTDetrConfig(backbone_config=backbone, num_labels=classes, **sizes, **TRANSFORMER))


def tiny_yolos(classes: int = 3) -> Any:
    from transformers import YolosConfig, YolosForObjectDetection

    sizes = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32}
    sizes |= {"patch_size": 16, "num_detection_tokens": 10, "num_labels": classes}
    return YolosForObjectDetection(YolosConfig(**sizes, image_size=[64, 64], use_mid_position_embeddings=False))


def tiny_yolo(classes: int = 3) -> Any:
    from ultralytics.nn.tasks import DetectionModel

    return DetectionModel("yolov8n.yaml", nc=classes, verbose=False)


TINY: dict[str, Callable[[], Any]] = {
    "ssd": tiny_ssd,
    "retinanet": tiny_retinanet,
    "fcos": tiny_fcos,
    "faster_rcnn": tiny_faster_rcnn,
    "detr": tiny_detr,
    "rt_detr": tiny_rtdetr,
    "yolos": tiny_yolos,
}


def scenes(count: int = 4, classes: int = 3) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    """Images of several sizes; the first has no objects."""
    generator = torch.Generator().manual_seed(0)
    images, targets = [], []
    for i in range(count):
        height, width = 48 + 8 * (i % 3), 64 - 8 * (i % 2)
        images.append(torch.rand(3, height, width, generator=generator))
        corners = torch.rand(i % 3, 2, generator=generator) * 20
        boxes = torch.cat([corners, corners + 8 + 16 * torch.rand(i % 3, 2, generator=generator)], 1)
        labels = torch.randint(classes, (i % 3,), generator=generator)
        targets.append({"boxes": boxes, "labels": labels})
    return images, targets


def write_coco(root: Path, train: int = 8, val: int = 4) -> Path:
    """Write images with coloured boxes in COCO's own layout; an image of each split has no annotations."""
    from torchvision.transforms.functional import to_pil_image

    (root / "annotations").mkdir(parents=True)
    for split, count in (("train2017", train), ("val2017", val)):
        (root / split).mkdir()
        images, targets = scenes(count)
        listed, annotations = [], []
        for i, (image, target) in enumerate(zip(images, targets, strict=True)):
            name = f"{i:06d}.png"
            for (left, top, right, bottom), label in zip(target["boxes"].int().tolist(), target["labels"], strict=True):
                image[:, top:bottom, left:right] = torch.eye(3)[label][:, None, None]
                annotations.append(
                    {
                        "id": len(annotations) + 1,
                        "image_id": 100 + i,
                        "category_id": list(CATEGORIES)[int(label)],
                        "bbox": [left, top, right - left, bottom - top],
                        "area": 0.7 * (right - left) * (bottom - top),
                        "iscrowd": int(len(annotations) == 2),
                    }
                )
            to_pil_image(image).save(root / split / name)
            listed.append({"id": 100 + i, "file_name": name, "height": image.shape[1], "width": image.shape[2]})
        categories = [{"id": number, "name": name} for number, name in CATEGORIES.items()]
        found = {"images": listed, "annotations": annotations, "categories": categories}
        (root / "annotations" / f"instances_{split}.json").write_text(json.dumps(found))
    return root
