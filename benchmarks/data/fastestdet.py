"""FastestDet (github.com/dog-qiuqiu/FastestDet): a detector of 0.24 M parameters, with images and score on COCO.

A ShuffleNetV2 (arXiv 1807.11164) reads images of 352 x 352 pixels; a neck joins three stages, and a head gives for
each of 22 x 22 cells the likelihood of an object, the box and the class. Names are those of the
published weights.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics.detection import MeanAveragePrecision
from torchvision.ops import batched_nms, generalized_box_iou_loss

from benchmarks.data.real import data_root

SIZE, CLASSES = 352, 80
STAGES = {"stage2": (24, 48, 4), "stage3": (48, 96, 8), "stage4": (96, 192, 4)}  # inputs, outputs, units
SCORE, OVERLAP, BOXES = 0.001, 0.45, 100  # of what is kept: the least score, overlap of a class, boxes of an image


def _conv(inputs: int, outputs: int, size: int, stride: int = 1) -> list[nn.Module]:
    """Return a 1 x 1 or depthwise convolution with BatchNorm."""
    groups = inputs if size > 1 else 1
    return [
        nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    ]


class ShuffleUnit(nn.Module):
    """Unit passing even channels on and computing on odd channels; with a stride, both branches read all channels."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        half = outputs // 2
        read = inputs if stride > 1 else inputs // 2
        middle = _conv(half, half, 3, stride)
        self.branch_main = nn.Sequential(
            *_conv(read, half, 1), nn.ReLU(), *middle, *_conv(half, outputs - read, 1), nn.ReLU()
        )
        self.branch_proj = (
            nn.Sequential(*_conv(inputs, inputs, 3, stride), *_conv(inputs, inputs, 1), nn.ReLU())
            if stride > 1
            else None
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return `(N, outputs, H / stride, W / stride)`."""
        if self.branch_proj is not None:
            return torch.cat([self.branch_proj(x), self.branch_main(x)], 1)
        return torch.cat([x[:, ::2], self.branch_main(x[:, 1::2])], 1)


class ShuffleNet(nn.Module):
    """The backbone: three stages at strides of 8, 16 and 32."""

    def __init__(self) -> None:
        super().__init__()
        self.first_conv = nn.Sequential(nn.Conv2d(3, 24, 3, 2, 1, bias=False), nn.BatchNorm2d(24), nn.ReLU())
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        for name, (inputs, outputs, units) in STAGES.items():
            first, *others = (ShuffleUnit(inputs if i == 0 else outputs, outputs, 2 - min(i, 1)) for i in range(units))
            setattr(self, name, nn.Sequential(first, *others))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the outputs of the stages, finest first."""
        second = self.stage2(self.maxpool(self.first_conv(x)))
        third = self.stage3(second)
        return second, third, self.stage4(third)


class Conv1x1(nn.Module):
    """A 1 x 1 convolution with BatchNorm and ReLU."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1x1 = nn.Sequential(*_conv(inputs, outputs, 1), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        """Return `(N, outputs, H, W)`."""
        return self.conv1x1(x)


class Pyramid(nn.Module):
    """One, two and three depthwise 5 x 5 convolutions side by side, joined and added to the input."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.Conv1x1 = Conv1x1(inputs, outputs)
        for number in (1, 2, 3):
            layers = [layer for _ in range(number) for layer in (*_conv(outputs, outputs, 5), nn.ReLU())]
            setattr(self, f"S{number}", nn.Sequential(*layers))
        self.output = nn.Sequential(*_conv(3 * outputs, outputs, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Return `(N, outputs, H, W)`."""
        x = self.Conv1x1(x)
        return F.relu(x + self.output(torch.cat([self.S1(x), self.S2(x), self.S3(x)], 1)))


class Head(nn.Module):
    """Depthwise 5 x 5 convolution and 1 x 1 convolution."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv5x5 = nn.Sequential(*_conv(inputs, inputs, 5), nn.ReLU(), *_conv(inputs, outputs, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Return `(N, outputs, H, W)`."""
        return self.conv5x5(x)


class DetectHead(nn.Module):
    """Three heads of a cell on shared features."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1x1 = Conv1x1(channels, channels)
        self.obj_layers, self.reg_layers = Head(channels, 1), Head(channels, 4)
        self.cls_layers = Head(channels, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Return `(N, 1 + 4 + 80, H, W)`: likelihood of an object, box, classes."""
        x = self.conv1x1(x)
        return torch.cat([self.obj_layers(x).sigmoid(), self.reg_layers(x), self.cls_layers(x).softmax(1)], 1)


class FastestDet(nn.Module):
    """The whole network: images `(N, 3, 352, 352)`, blue first and in [0, 1], to `(N, 85, 22, 22)`."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = ShuffleNet()
        self.upsample = nn.Upsample(scale_factor=2, mode="nearest")
        self.avg_pool = nn.AvgPool2d(3, 2, 1)
        self.SPP = Pyramid(48 + 96 + 192, 96)
        self.detect_head = DetectHead(96)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of the heads for each cell."""
        second, third, fourth = self.backbone(x)
        return self.detect_head(self.SPP(torch.cat([self.avg_pool(second), third, self.upsample(fourth)], 1)))


def fastestdet() -> nn.Module:
    """Return the network with the published weights."""
    network = FastestDet()
    network.load_state_dict(load_file(data_root() / "models" / "fastestdet_coco" / "model.safetensors"))
    return network.eval()


@dataclass(frozen=True)
class Scenes:
    """Images and their objects.

    Attributes:
        images: `(N, 3, 352, 352)`.
        objects: Objects of each image: boxes `(K, 4)` in pixels, x1 y1 x2 y2, and labels `(K,)`.
        sizes: Widths and heights of the images, in pixels, `(N, 2)`.
    """

    images: Tensor
    objects: Sequence[dict[str, Tensor]]
    sizes: Tensor


@cache
def scenes(split: str) -> Scenes:
    """Return the images of a split of COCO, "train2017" or "val2017"."""
    root = data_root() / "data" / "coco128"
    said = json.loads((root / "annotations" / f"instances_{split}.json").read_text())
    number = {category["id"]: i for i, category in enumerate(sorted(said["categories"], key=lambda c: c["id"]))}
    images, objects = [], []
    for image in said["images"]:
        images.append(_image(root / split / image["file_name"]))
        own = [one for one in said["annotations"] if one["image_id"] == image["id"] and not one["iscrowd"]]
        boxes = torch.tensor([one["bbox"] for one in own]).reshape(-1, 4)
        boxes = torch.cat([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], 1)
        objects.append({"boxes": boxes, "labels": torch.tensor([number[one["category_id"]] for one in own]).long()})
    sizes = torch.tensor([(image["width"], image["height"]) for image in said["images"]])
    return Scenes(torch.stack(images), objects, sizes)


def _image(path: Path) -> Tensor:
    pixels = np.asarray(Image.open(path).convert("RGB"))[:, :, ::-1].copy()
    image = torch.from_numpy(pixels).permute(2, 0, 1).float() / 255
    return F.interpolate(image[None], (SIZE, SIZE), mode="bilinear", align_corners=False)[0]


def _boxes(output: Tensor) -> Tensor:
    """Return the boxes of outputs `(N, 85, H, W)` as shares of the image, x1 y1 x2 y2, `(N, H, W, 4)`."""
    height, width = output.shape[2:]
    row, column = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    x, y = (output[:, 1].tanh() + column) / width, (output[:, 2].tanh() + row) / height
    w, h = output[:, 3].sigmoid(), output[:, 4].sigmoid()
    return torch.stack([x - w / 2, y - h / 2, x + w / 2, y + h / 2], -1)


def detection_loss(output: Tensor, objects: Sequence[Tensor]) -> Tensor:
    """Return the loss of labelled images: objects, boxes and classes, in the cells of the centres of objects.

    Args:
        output: `(N, 85, H, W)`.
        objects: Objects of each image: box as shares of the image, x1 y1 x2 y2, and number of the class, `(K, 5)`.
    """
    height, width = output.shape[2:]
    image = torch.cat([torch.full((len(own),), number) for number, own in enumerate(objects)])
    told = torch.cat(list(objects))
    column, row = (told[:, :4].unflatten(1, (2, 2)).mean(1) * torch.tensor([width, height])).long().unbind(1)
    row, column = row.clamp(0, height - 1), column.clamp(0, width - 1)
    there = torch.zeros_like(output[:, 0])
    there[image, row, column] = 1
    each = F.binary_cross_entropy(output[:, 0], there, reduction="none")
    box = generalized_box_iou_loss(_boxes(output)[image, row, column], told[:, :4], reduction="mean")
    classes = F.nll_loss(output[image, 5:, row, column].clamp_min(1e-6).log(), told[:, 4].long())
    return each[there == 1].mean() + each[there == 0].mean() + box + classes


def boxes_of(output: Tensor, size: Tensor) -> dict[str, Tensor]:
    """Return the boxes found on one image.

    Args:
        output: `(85, H, W)`.
        size: Width and height of the image, in pixels.
    """
    classes, labels = output[5:].max(0)
    scores = (output[0] ** 0.6 * classes**0.4).flatten()
    boxes = _boxes(output[None])[0].flatten(0, 1) * size.repeat(2)
    labels, likely = labels.flatten(), scores > SCORE
    boxes, scores, labels = boxes[likely], scores[likely], labels[likely]
    kept = batched_nms(boxes, scores, labels, OVERLAP)[:BOXES]
    return {"boxes": boxes[kept], "scores": scores[kept], "labels": labels[kept]}


def mean_precision(found: Sequence[dict[str, Tensor]], objects: Sequence[dict[str, Tensor]]) -> dict[str, float]:
    """Return mean average precisions in percent, "map" and "map_50".

    Args:
        found: Boxes, scores and labels found on each image.
        objects: Objects of each image.
    """
    metric = MeanAveragePrecision(backend="faster_coco_eval")
    metric.update(list(found), list(objects))
    values = metric.compute()
    return {name: 100 * float(values[name]) for name in ("map", "map_50")}
