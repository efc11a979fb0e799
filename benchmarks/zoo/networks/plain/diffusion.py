"""Plain networks of diffusion: a U-Net with text, a transformer, and an autoencoder of latents."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.zoo.networks.network import CLASSES
from benchmarks.zoo.networks.plain.pictures import conv

TEXT, STEPS = 24, 32  # features of text and of steps of diffusion


def sines(step: Tensor, size: int = STEPS) -> Tensor:
    """Return sines and cosines of steps, `(N, size)`."""
    angles = step[:, None] * torch.exp(-math.log(10000) * torch.arange(size // 2) / (size // 2))
    return torch.cat([angles.sin(), angles.cos()], 1)


class TimedResidual(nn.Module):
    """Residual block with an added projection of the step."""

    def __init__(self, made: int, width: int, timed: int | None = 64) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(8, made), conv(made, width)
        self.time = nn.Linear(timed, width) if timed else None
        self.norm2, self.conv2 = nn.GroupNorm(8, width), conv(width, width)
        self.shortcut = nn.Conv2d(made, width, 1) if made != width else nn.Identity()

    def forward(self, x: Tensor, time: Tensor | None = None) -> Tensor:
        y = self.conv1(F.silu(self.norm1(x)))
        if self.time is not None and time is not None:
            y = y + self.time(F.silu(time))[:, :, None, None]
        return self.shortcut(x) + self.conv2(F.silu(self.norm2(y)))


class CrossAttention(nn.Module):
    """An attention with separate projections, to itself or to text."""

    def __init__(self, width: int, read: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(width, width, bias=False)
        self.to_k, self.to_v = nn.Linear(read, width, bias=False), nn.Linear(read, width, bias=False)
        self.to_out = nn.Linear(width, width)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        context = x if context is None else context
        query, key, value = (
            part.view(part.shape[0], part.shape[1], self.heads, -1).transpose(1, 2)
            for part in (self.to_q(x), self.to_k(context), self.to_v(context))
        )
        found = F.scaled_dot_product_attention(query, key, value)
        return self.to_out(found.transpose(1, 2).flatten(2))


class SpatialTransformer(nn.Module):
    """Attention among pixels, attention to text, and a gated feed-forward."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.enter, self.leave = (
            nn.GroupNorm(8, width),
            nn.Conv2d(width, width, 1),
            nn.Conv2d(width, width, 1),
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.own, self.text = CrossAttention(width, width), CrossAttention(width, TEXT)
        self.gate, self.out = nn.Linear(width, 4 * width), nn.Linear(2 * width, width)

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        x = self.enter(self.norm(image))
        sizes = x.shape
        x = x.permute(0, 2, 3, 1).reshape(sizes[0], sizes[2] * sizes[3], sizes[1])
        x = x + self.own(self.norms[0](x))
        x = x + self.text(self.norms[1](x), text)
        hidden, gate = self.gate(self.norms[2](x)).chunk(2, -1)
        x = x + self.out(hidden * F.gelu(gate))
        x = x.reshape(sizes[0], sizes[2], sizes[3], -1).permute(0, 3, 1, 2)
        return image + self.leave(x)


class ConditionedUNet(nn.Module):
    """U-Net of diffusion with a step and states of text."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(STEPS, 64), nn.SiLU(), nn.Linear(64, 64))
        self.enter = conv(4, 16)
        self.down = nn.ModuleList([TimedResidual(16, 16), TimedResidual(16, 32)])
        self.shrink = conv(16, 16, stride=2)
        self.texts = nn.ModuleList([SpatialTransformer(32), SpatialTransformer(32)])
        self.middle = TimedResidual(32, 32)
        self.up = nn.ModuleList([TimedResidual(64, 32), TimedResidual(48, 16)])
        self.grow = conv(32, 32)
        self.norm, self.leave = nn.GroupNorm(8, 16), conv(16, 4)

    def forward(self, sample: Tensor, step: Tensor, text: Tensor) -> Tensor:
        time = self.time(sines(step))
        first = self.down[0](self.enter(sample), time)
        second = self.texts[0](self.down[1](self.shrink(first), time), text)
        x = self.texts[1](self.middle(second, time), text)
        x = self.up[0](torch.cat([x, second], 1), time)
        x = self.grow(F.interpolate(x, scale_factor=2.0, mode="nearest"))
        x = self.up[1](torch.cat([x, first], 1), time)
        return self.leave(F.silu(self.norm(x)))


class ModulatedBlock(nn.Module):
    """A block of a DiT: both branches are scaled, shifted and gated by the condition."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(width, elementwise_affine=False) for _ in range(2))
        self.attn = CrossAttention(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU("tanh"), nn.Linear(2 * width, width))
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(condition)[:, None].chunk(6, -1)
        x = x + gate1 * self.attn(self.norm1(x) * (1 + scale1) + shift1)
        return x + gate2 * self.mlp(self.norm2(x) * (1 + scale2) + shift2)


class DiffusionTransformer(nn.Module):
    """A DiT over patches of a latent."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(4, 64, 4, 4)
        self.positions = nn.Parameter(torch.randn(1, 16, 64) * 0.1)
        self.time = nn.Sequential(nn.Linear(STEPS, 64), nn.SiLU(), nn.Linear(64, 64))
        self.kinds = nn.Embedding(CLASSES, 64)
        self.blocks = nn.ModuleList([ModulatedBlock(64), ModulatedBlock(64)])
        self.norm = nn.LayerNorm(64, elementwise_affine=False)
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(64, 128))
        self.head = nn.Linear(64, 4 * 4 * 4)

    def forward(self, sample: Tensor, step: Tensor, kind: Tensor) -> Tensor:
        x = self.patches(sample).flatten(2).transpose(1, 2) + self.positions
        condition = self.time(sines(step)) + self.kinds(kind)
        for block in self.blocks:
            x = block(x, condition)
        shift, scale = self.modulation(condition)[:, None].chunk(2, -1)
        x = self.head(self.norm(x) * (1 + scale) + shift)
        x = x.view(x.shape[0], 4, 4, 4, 4, 4)
        return torch.einsum("nhwpqc->nchpwq", x).reshape(x.shape[0], 4, 16, 16)


class PixelAttention(nn.Module):
    """Attention with a single head among pixels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = (
            nn.GroupNorm(8, width),
            nn.Conv2d(width, 3 * width, 1),
            nn.Conv2d(width, width, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(self.norm(x)).flatten(2).chunk(3, 1)
        weights = (query.mT @ key * query.shape[1] ** -0.5).softmax(-1)
        return x + self.out((value @ weights.mT).view_as(x))


class Autoencoder(nn.Module):
    """Autoencoder with means and variances as latents; the means are decoded."""

    def __init__(self) -> None:
        super().__init__()
        residual = [TimedResidual(made, width, None) for made, width in ((16, 16), (16, 32), (32, 32), (32, 16))]
        self.encoder = nn.Sequential(
            *(conv(3, 16), residual[0], conv(16, 16, stride=2), residual[1], PixelAttention(32)),
            *(nn.GroupNorm(8, 32), nn.SiLU(), conv(32, 8)),
        )
        self.quant, self.post_quant = nn.Conv2d(8, 8, 1), nn.Conv2d(4, 4, 1)
        self.decoder = nn.Sequential(
            *(conv(4, 32), residual[2], nn.Upsample(scale_factor=2), conv(32, 32), residual[3]),
            *(nn.GroupNorm(8, 16), nn.SiLU(), conv(16, 3)),
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, spread = self.quant(self.encoder(x)).chunk(2, 1)
        return self.decoder(self.post_quant(mean)), spread.clamp(-30, 20)
