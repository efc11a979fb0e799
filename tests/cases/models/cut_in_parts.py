"""Networks with splits of tensors in the forward, like YOLOv8."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

Cut = Callable[[Tensor], tuple[Tensor, ...]]


class ConvNorm(nn.Module):
    """Convolution with norm and activation."""

    def __init__(self, c_in: int, c_out: int, size: int = 1, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(c_in, c_out, size, stride, padding=size // 2, bias=False)
        self.bn = nn.BatchNorm2d(c_out)
        self.act = nn.SiLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.bn(self.conv(x)))


class Bottleneck(nn.Module):
    """Two convolutions, with an optional shortcut around them."""

    def __init__(self, width: int, inner: int, size: int, *, shortcut: bool) -> None:
        super().__init__()
        self.cv1, self.cv2, self.shortcut = ConvNorm(width, inner, size), ConvNorm(inner, width, 3), shortcut

    def forward(self, x: Tensor) -> Tensor:
        y = self.cv2(self.cv1(x))
        return x + y if self.shortcut else y


class C2f(nn.Module):
    """Split with bottlenecks on the second half, then a concatenation; the exporter calls `forward_split`."""

    def __init__(self, c_in: int, c_out: int, width: int, *, shortcut: bool) -> None:
        super().__init__()
        self.c = width
        self.cv1, self.cv2 = ConvNorm(c_in, 2 * width), ConvNorm(3 * width, c_out)
        self.m = nn.ModuleList([Bottleneck(width, width - 2, 3, shortcut=shortcut)])

    def forward(self, x: Tensor) -> Tensor:
        return self._joined(*self.cv1(x).chunk(2, 1))

    def forward_split(self, x: Tensor) -> Tensor:
        return self._joined(*self.cv1(x).split((self.c, self.c), 1))

    def _joined(self, left: Tensor, right: Tensor) -> Tensor:
        y = [left, right]
        y.extend(m(y[-1]) for m in self.m)
        return self.cv2(torch.cat(y, 1))


def c2f_network() -> nn.Module:
    """Two blocks, with a shortcut and without."""
    blocks = C2f(14, 10, 8, shortcut=True), C2f(10, 12, 7, shortcut=False)
    pooled = nn.AdaptiveAvgPool2d(1), nn.Flatten()
    return nn.Sequential(ConvNorm(3, 14, 3), *blocks, ConvNorm(12, 6), *pooled, nn.Linear(6, 3))


class Halves(nn.Module):
    """Parts of a tensor with separate functions, read together."""

    functions = (torch.sin, torch.tanh, torch.square, torch.nn.functional.silu)

    def __init__(self, cut: Cut, width: int = 16) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Conv2d(3, width, 1), nn.Conv2d(width, 10, 1), nn.Conv2d(10, 2, 1)
        self.cut, self.act = cut, nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        parts = self.cut(self.first(x))
        y = torch.cat([f(part) for f, part in zip(self.functions, parts, strict=False)], 1)
        return self.last(self.act(self.second(y))).mean((2, 3))
