"""Small networks for every way in which units lie in tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class SmallCnn(nn.Module):
    """Two convolutions with BatchNorm, and a linear that reads the flattened map."""

    def __init__(self, in_channels: int = 3, size: int = 4, classes: int = 5) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(in_channels, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.head = nn.Linear(6 * size * size, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        return self.head(F.relu(self.bn2(self.conv2(x))).flatten(1))


class Depthwise(nn.Module):
    """Two outputs per channel."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn1 = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8)
        self.depthwise, self.bn2 = nn.Conv2d(8, 16, 3, groups=8), nn.BatchNorm2d(16)
        self.point = nn.Conv2d(16, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.point(F.relu(self.bn2(self.depthwise(F.relu(self.bn1(self.conv(x)))))))


class Concatenated(nn.Module):
    """The second convolution's output enters twice, around the first one's."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 6, 3)
        self.bn, self.point = nn.BatchNorm2d(16), nn.Conv2d(16, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        b = self.b(x)
        return self.point(F.relu(self.bn(torch.cat([b, self.a(x), b], 1))))


class Padded(nn.Module):
    """Option A: every second position, channels among zeros."""

    def __init__(self, stride: int = 2, before: int = 2, after: int = 2) -> None:
        super().__init__()
        self.stride, self.padding = stride, (0, 0, 0, 0, before, after)

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, :: self.stride, :: self.stride], self.padding)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.conv, self.bn = nn.Conv2d(4, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8)
        self.shortcut, self.relu, self.head = Padded(), nn.ReLU(), nn.Conv2d(8, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head(self.relu(self.bn(self.conv(x)) + self.shortcut(x)))


class Upsampling(nn.Module):
    """Transposed convolution, whose weight is (in, out), and a grouped one."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.up = nn.Conv2d(3, 6, 3), nn.ConvTranspose2d(6, 8, 2, stride=2)
        self.grouped, self.point = nn.ConvTranspose2d(8, 8, 2, groups=4), nn.Conv2d(8, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.point(self.grouped(self.up(self.conv(x))))


class Experts(nn.Module):
    """Routed experts in fused 3-D parameters: gate and up (E, 2I, C), down (E, C, I)."""

    def __init__(self, experts: int = 5, width: int = 6, inner: int = 4) -> None:
        super().__init__()
        self.num_experts = experts
        self.router = nn.Linear(width, experts)
        self.gate_up = nn.Parameter(torch.randn(experts, 2 * inner, width))
        self.down = nn.Parameter(torch.randn(experts, width, inner))
        self.hidden = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        weights = self.router(x).softmax(-1)
        assert weights.shape[-1] == self.num_experts
        gate, up = torch.einsum("nc,eic->nei", x, self.gate_up).chunk(2, -1)
        hidden = self.hidden(F.silu(gate) * up)
        return torch.einsum("ne,nei,eci->nc", weights, hidden, self.down)


class Tied(nn.Module):
    """Token embedding and head with a shared parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(11, 6), nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embed(tokens))


class SharedConfig:
    def __init__(self) -> None:
        self.inner, self.label = 6, "a"

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


class Configured(nn.Module):
    """Two layers with a shared config, as in transformers; a norm without parameters; a count over several groups."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SharedConfig()
        self.a, self.b = nn.Linear(2, 6), nn.Linear(2, 6)
        self.norm = nn.LayerNorm(6, elementwise_affine=False)
        self.both, self.flag = 12, True
