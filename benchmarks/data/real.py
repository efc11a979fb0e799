"""Real data and weights for the benchmarks, from the folder in PRUNERECOVER_DATA."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn

from prunerecover.recipes.data.image_data import ImageData

INSTRUCTIONS: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # not known to older releases of torch
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # networks are fitted and scored here
BF16 = DEVICE.type == "cuda" or any(INSTRUCTIONS.get(name) for name in ("amx_bf16", "avx512_bf16"))  # else far slower


def data_root() -> Path:
    """Return the folder with `data/` and `models/`; exit with a message if the variable is unset or wrong."""
    root = os.environ.get("PRUNERECOVER_DATA")
    if not root or not Path(root, "data").is_dir():
        sys.exit("Set PRUNERECOVER_DATA to the folder that holds data/ and models/.")
    return Path(root)


def deit_tiny() -> nn.Module:
    """Load DeiT-Tiny (ImageNet-1k)."""
    name = f"local-dir:{data_root() / 'models' / 'deit_tiny_patch16_224'}"
    return timm.create_model(name, pretrained=True).eval()


def image_data(name: str, **kwargs: Any) -> ImageData:
    """Return an image set with DeiT-Tiny's transforms, without augmentation."""
    model = f"local-dir:{data_root() / 'models' / 'deit_tiny_patch16_224'}"
    return ImageData(str(data_root() / "data" / name), model=model, **kwargs)


def autocast() -> torch.autocast:
    """Return a context for bf16, where the device multiplies in bf16 natively and takes half the time."""
    return torch.autocast(DEVICE.type, torch.bfloat16, enabled=BF16)


def correct(model: nn.Module, loader: Iterable[Any], classes: Tensor | None = None) -> Tensor:
    """Return per-sample correctness `(N,)`; `classes` restricts a larger head to a subset, in label order."""
    hits = []
    with torch.inference_mode():
        for images, labels in loader:
            logits = model.to(DEVICE).eval()(images.to(DEVICE)).cpu()
            logits = logits if classes is None else logits[:, classes]
            hits.append(logits.argmax(1) == labels)
    return torch.cat(hits)
