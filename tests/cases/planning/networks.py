"""Tiny networks for budgets over depth and width, and batches for them."""

from __future__ import annotations

from typing import Any

import torch
from cases.models.tiny import stir, tiny_images
from torch import Tensor, nn

from prunerecover.cost.macs import count_macs
from prunerecover.surgery.merging import merge

IMAGE = torch.zeros(1, 3, 16, 16)


def vit(**changes: Any) -> nn.Module:
    """Three small blocks."""
    from timm.models.vision_transformer import VisionTransformer

    shape = {"img_size": 16, "patch_size": 8, "embed_dim": 16, "depth": 3, "num_heads": 2, "num_classes": 4}
    torch.manual_seed(0)
    return stir(VisionTransformer(**{**shape, **changes}))


def cnn() -> nn.Module:
    """Every convolution changes the number of channels or the size: no layer can go."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 12, 3), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(12 * 144, 4)).eval()


def images(batches: int = 2, samples: int = 8) -> list[tuple[Tensor, Tensor]]:
    """Labelled images."""
    return [(tiny_images(samples, seed=seed), torch.arange(samples) % 4) for seed in range(batches)]


def left(dense: nn.Module, pruned: nn.Module) -> float:
    """Return the merged network's share of the MACs; merges in place."""
    merge(pruned)
    return count_macs(pruned, IMAGE) / count_macs(dense, IMAGE)


class Plain(nn.Module):
    """Two convolutions beside a shortcut, without norms."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + self.second(self.first(x).relu())).relu()


class Residual(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + self.norms[1](self.second(self.norms[0](self.first(x)).relu()))).relu()
