"""Real data and weights for the benchmarks, from the folder in PRUNERECOVER_DATA."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import timm
import torch
from torch import nn

INSTRUCTIONS: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # not known to older releases of torch
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # networks are fitted and scored here
BF16 = DEVICE.type == "cuda" or any(INSTRUCTIONS.get(name) for name in ("amx_bf16", "avx512_bf16"))  # else far slower


def data_root() -> Path:
    """Return the folder with `data/` and `models/`; exit with a message if the variable is unset or wrong."""
    root = os.environ.get("PRUNERECOVER_DATA")
    if not root or not Path(root, "data").is_dir():
        sys.exit("Set PRUNERECOVER_DATA to the folder that holds data/ and models/.")
    return Path(root)


def deit_tiny_name() -> str:
    """Return timm's name of DeiT-Tiny (ImageNet-1k) with its weights."""
    return f"local-dir:{data_root() / 'models' / 'deit_tiny_patch16_224'}"


def deit_tiny() -> nn.Module:
    """Load DeiT-Tiny."""
    return timm.create_model(deit_tiny_name(), pretrained=True).eval()


def autocast() -> torch.autocast:
    """Return a context for bf16, where the device multiplies in bf16 natively and takes half the time."""
    return torch.autocast(DEVICE.type, torch.bfloat16, enabled=BF16)
