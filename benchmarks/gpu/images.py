"""Images of tiny_imagenet on the device: decoded once at 64 pixels, then cropped, mirrored and upsampled there.

Each training image has a few views, boxes that are drawn once, so that the teacher answers each of them once for all
rows: a student that trains for longer sees them again.
"""

from __future__ import annotations

import io
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from PIL import Image
from timm.data import resolve_model_data_config
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.data.real import DEVICE, data_root

CENTRE = 0.9  # what of an image's side is scored, as DeiT's evaluation does
AREA, RATIO = (0.5, 1.0), (3 / 4, 4 / 3)  # of the boxes that are trained on
SHOWN = 512  # images that are upsampled at a time


@dataclass(frozen=True)
class Images:
    """Pixels and labels on the device.

    Attributes:
        pixels: `(N, 3, 64, 64)`, whole numbers up to 255.
        labels: `(N,)`.
        side: Pixels of a side that the network sees.
        mean: Of the network's inputs, by colour.
        std: Likewise.
    """

    pixels: Tensor
    labels: Tensor
    side: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, chosen: Tensor | slice) -> Images:
        """Return some of the images."""
        return replace(self, pixels=self.pixels[chosen], labels=self.labels[chosen])

    def seen(self, boxes: Tensor | None = None) -> Tensor:
        """Return what a network sees, `(N, 3, side, side)`.

        Args:
            boxes: `(N, 4)`: half of the width and of the height, and the centre, from -1 to 1; a negative width
                mirrors. None: the middle of each image.
        """
        if boxes is None:
            boxes = torch.tensor([CENTRE, CENTRE, 0.0, 0.0], device=self.pixels.device).expand(len(self), 4)
        width, height, x, y = boxes.unbind(1)
        none = torch.zeros_like(x)
        maps = torch.stack([torch.stack([width, none, x], 1), torch.stack([none, height, y], 1)], 1)
        grid = F.affine_grid(maps, [len(self), 3, self.side, self.side], align_corners=False)
        sampled = F.grid_sample(self.pixels / 255, grid, "bicubic", "reflection", align_corners=False).clamp(0, 1)
        mean, std = (torch.tensor(value, device=sampled.device).view(3, 1, 1) for value in (self.mean, self.std))
        return (sampled - mean) / std


def decoded(split: str, network: nn.Module, side: int, n: int | None = None, seed: int = 0) -> Images:
    """Decode `n` images of a split, drawn with `seed`, onto the device; None: all, in this order, too."""
    table: Any = pq.read_table(data_root() / "data" / "tiny_imagenet" / f"{split}.parquet")
    table = table.take(np.random.default_rng(seed).permutation(table.num_rows)[:n])
    files = (row["bytes"] for row in table["image"].to_pylist())
    pixels = np.stack([np.array(Image.open(io.BytesIO(file)).convert("RGB")) for file in files])
    config = resolve_model_data_config(network)
    on_device = torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous().to(DEVICE)
    labels = torch.tensor(table["label"].to_pylist(), device=DEVICE)
    return Images(on_device, labels, side, config["mean"], config["std"])


def views(n_images: int, n_views: int, seed: int = 0) -> Tensor:
    """Return boxes for random views of images, `(n_views, n_images, 4)`, half of them mirrored."""
    drawn = torch.rand(n_views, n_images, 5, generator=torch.Generator().manual_seed(seed)).to(DEVICE)
    area = AREA[0] + (AREA[1] - AREA[0]) * drawn[..., 0]
    low, high = (math.log(ratio) / 2 for ratio in RATIO)
    stretch = torch.exp(low + (high - low) * drawn[..., 1])
    width, height = ((area.sqrt() * by).clamp(max=1) for by in (stretch, 1 / stretch))
    x, y = ((1 - side) * (2 * place - 1) for side, place in ((width, drawn[..., 2]), (height, drawn[..., 3])))
    return torch.stack([torch.where(drawn[..., 4] < 0.5, -width, width), height, x, y], -1)
