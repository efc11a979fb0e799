"""Plain networks that restore, make, segment or classify pictures."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def conv(made: int, width: int, size: int = 3, **options: Any) -> nn.Conv2d:
    """Return a convolution with outputs of the picture's size if its stride is 1."""
    return nn.Conv2d(made, width, size, padding=size // 2, **options)


class DoubleConvolution(nn.Module):
    """Two convolutions, each with a norm of groups."""

    def __init__(self, made: int, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(conv(made, width), nn.GroupNorm(8, width), nn.SiLU()),
            *(conv(width, width), nn.GroupNorm(8, width), nn.SiLU()),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


class UNet(nn.Module):
    """A U-Net with norms of groups and bilinear steps up."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([DoubleConvolution(3, 16), DoubleConvolution(16, 32), DoubleConvolution(32, 64)])
        self.up = nn.ModuleList([DoubleConvolution(96, 32), DoubleConvolution(48, 16)])
        self.head = nn.Conv2d(16, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for block in self.down:
            x = block(x if not kept else F.max_pool2d(x, 2))
            kept.append(x)
        for block, other in zip(self.up, reversed(kept[:-1]), strict=True):
            x = block(torch.cat([F.interpolate(x, scale_factor=2, mode="bilinear"), other], 1))
        return self.head(x)


class ScaledResidual(nn.Module):
    """Two convolutions without norms, scaled before the addition."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(conv(width, width), nn.ReLU(), conv(width, width))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) * 0.1


class SuperResolution(nn.Module):
    """An EDSR: residual blocks without norms, and shuffled pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.body = conv(3, 32), nn.Sequential(*(ScaledResidual(32) for _ in range(3)), conv(32, 32))
        self.up = nn.Sequential(conv(32, 128), nn.PixelShuffle(2), conv(32, 3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        return self.up(x + self.body(x))


class DenseResidual(nn.Module):
    """Convolutions that read all earlier outputs, scaled before the addition."""

    def __init__(self, width: int, growth: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(conv(width + n * growth, width if n == 3 else growth) for n in range(4))

    def forward(self, x: Tensor) -> Tensor:
        found = [x]
        for layer in self.convs[:-1]:
            found.append(F.leaky_relu(layer(torch.cat(found, 1)), 0.2))
        return x + 0.2 * self.convs[-1](torch.cat(found, 1))


class DenseSuperResolution(nn.Module):
    """An ESRGAN's generator: dense residual blocks and nearest steps up."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.body = conv(3, 32), nn.Sequential(DenseResidual(32, 16), DenseResidual(32, 16))
        self.after, self.up, self.leave = conv(32, 32), conv(32, 32), conv(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        x = x + self.after(self.body(x))
        return self.leave(F.leaky_relu(self.up(F.interpolate(x, scale_factor=2)), 0.2))


class Discriminator(nn.Sequential):
    """A discriminator of patches with norms of instances."""

    def __init__(self) -> None:
        super().__init__(
            *(conv(3, 16, 4, stride=2), nn.LeakyReLU(0.2)),
            *(conv(16, 32, 4, stride=2), nn.InstanceNorm2d(32, affine=True), nn.LeakyReLU(0.2)),
            *(conv(32, 64, 4, stride=2), nn.InstanceNorm2d(64, affine=True), nn.LeakyReLU(0.2)),
            conv(64, 1, 3),
        )


class Modulated(nn.Module):
    """Convolution whose input is scaled and shifted by a style, after an instance norm."""

    def __init__(self, made: int, width: int) -> None:
        super().__init__()
        self.norm, self.conv = nn.InstanceNorm2d(made), conv(made, width)
        self.scale, self.shift = nn.Linear(32, made), nn.Linear(32, made)

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        scale, shift = self.scale(style)[:, :, None, None], self.shift(style)[:, :, None, None]
        return F.leaky_relu(self.conv(self.norm(x) * (1 + scale) + shift), 0.2)


class ModulatedGenerator(nn.Module):
    """Generator with a learned constant as its start, steered by a style."""

    def __init__(self) -> None:
        super().__init__()
        self.mapping = nn.Sequential(nn.Linear(32, 64), nn.LeakyReLU(0.2), nn.Linear(64, 32))
        self.start = nn.Parameter(torch.randn(1, 48, 4, 4))
        self.first, self.second, self.leave = Modulated(48, 48), Modulated(48, 32), nn.Conv2d(32, 3, 1)

    def forward(self, latent: Tensor) -> Tensor:
        style = self.mapping(latent)
        x = self.first(self.start.expand(latent.shape[0], -1, -1, -1), style)
        return self.leave(self.second(F.interpolate(x, scale_factor=2), style)).tanh()
