"""A user's own networks and their makers, for a command line with class paths."""

from __future__ import annotations

from torch import Tensor, nn


class OwnNetwork(nn.Module):
    """Network outside all libraries, around a network to prune in depth."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3))

    def forward(self, images: Tensor) -> Tensor:
        return self.body(images).mean((2, 3))


class Takes(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()


def no_network() -> int:
    return 3
