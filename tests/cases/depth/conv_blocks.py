"""Small network of residual blocks with BatchNorm, images for it, and the error of a pruned network."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from prunerecover import recalibrate_batchnorm


def images(n: int = 64, seed: int = 1) -> Tensor:
    return torch.randn(n, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


def labelled(n: int = 64, seed: int = 1) -> list[tuple[Tensor, Tensor]]:
    return [(part, torch.arange(len(part)) % 4) for part in images(n, seed).split(32)]


def error(network: nn.Module, dense: nn.Module) -> float:
    with torch.no_grad():
        return float((network(images(64, 9)) - dense(images(64, 9))).square().mean())


class Blocks(nn.Module):
    """Blocks of two convolutions with BatchNorm beside a shortcut, as in a ResNet."""

    def __init__(self, blocks: int = 4) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12)
        self.blocks = nn.Sequential(*(Block(12) for _ in range(blocks)))
        self.head = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(F.relu(self.norm(self.stem(x)))).mean((2, 3)))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.first_norm, self.second_norm = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.second_norm(self.second(F.relu(self.first_norm(self.first(x))))))


def blocks() -> nn.Module:
    torch.manual_seed(0)
    network = Blocks().eval()
    recalibrate_batchnorm(network, [images(64, 5)])
    return network
