"""A folder of random images with boxes, in the layout of ultralytics' data sets."""

from __future__ import annotations

from pathlib import Path

import torch
from torchvision.transforms.functional import to_pil_image


def write_detection_folder(root: Path, images: int = 8, size: int = 64) -> Path:
    """Write training and validation images of two classes; return the path of their data.yaml."""
    generator = torch.Generator().manual_seed(0)
    for split in ("train", "val"):
        for kind in ("images", "labels"):
            (root / kind / split).mkdir(parents=True)
        for i in range(images):
            pixels = torch.randint(256, (3, size, size), generator=generator).to(torch.uint8)
            to_pil_image(pixels).save(root / f"images/{split}/{i}.png")
            (root / f"labels/{split}/{i}.txt").write_text("0 0.5 0.5 0.4 0.4\n1 0.3 0.3 0.2 0.2\n")
    data = root / "data.yaml"
    data.write_text(f"path: {root}\ntrain: images/train\nval: images/val\nnames: {{0: first, 1: second}}\n")
    return data
