"""Plain networks that restore, make, segment or classify pictures."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.zoo.networks.network import CLASSES


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


class ShiftedWindows(nn.Module):
    """A layer of window attention, shifted or not, with a table of relative positions."""

    def __init__(self, width: int, *, shift: int, window: int = 4, heads: int = 4) -> None:
        super().__init__()
        self.window, self.shift, self.num_heads = window, shift, heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.table = nn.Parameter(torch.randn(window**4, heads) * 0.1)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        samples, side, _, width = x.shape
        w, count = self.window, side // self.window
        y = torch.roll(self.norm1(x), (-self.shift, -self.shift), (1, 2))
        y = y.view(samples, count, w, count, w, width).transpose(2, 3).reshape(-1, w * w, width)
        qkv = self.qkv(y).reshape(y.shape[0], w * w, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        bias = self.table.view(w * w, w * w, self.num_heads).permute(2, 0, 1)
        weights = (qkv[0] @ qkv[1].mT * qkv.shape[-1] ** -0.5 + bias).softmax(-1)
        y = self.proj((weights @ qkv[2]).transpose(1, 2).reshape(y.shape[0], w * w, -1))
        y = y.view(samples, count, count, w, w, width).transpose(2, 3).reshape(samples, side, side, width)
        x = x + torch.roll(y, (self.shift, self.shift), (1, 2))
        return x + self.mlp(self.norm2(x))


class WindowGroup(nn.Module):
    """Two layers of window attention and a convolution, inside a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(ShiftedWindows(width, shift=0), ShiftedWindows(width, shift=2))
        self.conv = conv(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(self.layers(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2))


class SwinRestorer(nn.Module):
    """A SwinIR: window attention at the size of the image, and a step up by shuffled pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = conv(3, 32)
        self.groups = nn.Sequential(WindowGroup(32), WindowGroup(32))
        self.after = conv(32, 32)
        self.up = nn.Sequential(conv(32, 12), nn.PixelShuffle(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        return self.up(x + self.after(self.groups(x)))


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


class SqueezeResidual(nn.Module):
    """Residual block with channels, and optionally positions, scaled by computed gates."""

    def __init__(self, made: int, width: int, *, spatial: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(conv(made, width, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
            *(conv(width, width, bias=False), nn.BatchNorm2d(width)),
        )
        self.fc = nn.Sequential(nn.Linear(width, width // 4), nn.ReLU(), nn.Linear(width // 4, width), nn.Sigmoid())
        self.places = conv(2, 1, 7) if spatial else None
        self.shortcut = nn.Conv2d(made, width, 1) if made != width else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        y = y * self.fc(y.mean((2, 3))).view(y.shape[0], -1, 1, 1)
        if self.places is not None:
            y = y * self.places(torch.cat([y.mean(1, keepdim=True), y.amax(1, keepdim=True)], 1)).sigmoid()
        return F.relu(y + self.shortcut(x))


class SqueezeResNet(nn.Module):
    """A residual network with squeeze and excite, and attention to positions if asked."""

    def __init__(self, *, spatial: bool = False) -> None:
        super().__init__()
        self.stem = conv(3, 32)
        self.blocks = nn.Sequential(
            SqueezeResidual(32, 32, spatial=spatial),
            nn.MaxPool2d(2),
            SqueezeResidual(32, 64, spatial=spatial),
            SqueezeResidual(64, 64, spatial=spatial),
        )
        self.head = nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


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


class GatedMixer(nn.Module):
    """Mixer of tokens by a gate over positions, and a mixer of channels."""

    def __init__(self, width: int, tokens: int) -> None:
        super().__init__()
        self.norm, self.enter, self.leave = (
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.Linear(2 * width, width),
        )
        self.gate_norm, self.gate = nn.LayerNorm(2 * width), nn.Conv1d(tokens, tokens, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden, gate = F.gelu(self.enter(self.norm(x))).chunk(2, -1)
        return x + self.leave(hidden * self.gate(self.gate_norm(gate)))


class MixerWithGates(nn.Module):
    """Patches mixed by gates."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 48, 4, 4)
        self.blocks = nn.Sequential(GatedMixer(48, 16), GatedMixer(48, 16))
        self.head = nn.Linear(48, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.patches(x).flatten(2).transpose(1, 2)).mean(1))
