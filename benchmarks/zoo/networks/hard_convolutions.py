"""Small convolutional networks whose channels are coupled in error-prone ways."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.zoo.networks.network import CLASSES

WIDTH = 32


def conv(c_in: int, c_out: int, size: int = 3, **kwargs: int) -> nn.Sequential:
    """Convolution of equal size, norm and ReLU."""
    return nn.Sequential(
        nn.Conv2d(c_in, c_out, size, padding=size // 2, bias=False, **kwargs), nn.BatchNorm2d(c_out), nn.ReLU()
    )


class Classifier(nn.Module):
    """A stem, a body from `WIDTH` to `c_out` channels, and a linear head on the mean over positions."""

    def __init__(self, body: nn.Module, c_out: int = WIDTH) -> None:
        super().__init__()
        self.stem, self.body, self.head = conv(3, WIDTH), body, nn.Linear(c_out, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.stem(x)).mean((2, 3)))


class Residual(nn.Module):
    """Two convolutions beside a shortcut, projected where the width changes."""

    def __init__(self, c_in: int, c_out: int, inner: int) -> None:
        super().__init__()
        self.first, self.second = conv(c_in, inner), conv(inner, c_out)
        self.project = nn.Conv2d(c_in, c_out, 1) if c_in != c_out else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.project(x) + self.second(self.first(x)))


class Shuffle(nn.Module):
    """Grouped convolutions with a channel shuffle between them, by view and transpose."""

    def __init__(self, groups: int = 4) -> None:
        super().__init__()
        self.groups = groups
        self.first, self.second = conv(WIDTH, 64, 1, groups=groups), conv(64, 64, 3, groups=groups)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        n, c, h, w = x.shape
        x = x.view(n, self.groups, c // self.groups, h, w).transpose(1, 2).reshape(n, c, h, w)
        return self.second(x)


class Dense(nn.Module):
    """Layers that read all earlier layers."""

    def __init__(self, layers: int = 4, growth: int = 16) -> None:
        super().__init__()
        self.layers = nn.ModuleList(conv(WIDTH + i * growth, growth) for i in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        found = [x]
        for layer in self.layers:
            found.append(layer(torch.cat(found, 1)))
        return torch.cat(found, 1)


class Repeated(nn.Module):
    """A convolution used three times on the same stream."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.shared, self.leave = conv(WIDTH, 48), conv(48, 48), conv(48, 64)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for _ in range(3):
            x = x + self.shared(x)
        return self.leave(x)


class Chunked(nn.Module):
    """Halves with different paths, joined again (as in C2f and CSP)."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.one, self.two = conv(WIDTH, 64, 1), conv(32, 32), conv(32, 32)
        self.leave = conv(128, 64, 1)

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.enter(x).chunk(2, 1)
        first = self.one(right)
        return self.leave(torch.cat([left, right, first, self.two(first)], 1))


class Split(nn.Module):
    """Unequal parts by split, each with a convolution of its own size."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = conv(WIDTH, 64, 1)
        self.parts = nn.ModuleList([nn.Identity(), conv(16, 16, 3), conv(32, 32, 5)])
        self.leave = conv(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.enter(x).split([16, 16, 32], 1)
        return self.leave(torch.cat([layer(part) for layer, part in zip(self.parts, parts, strict=True)], 1))


class SqueezeExcite(nn.Module):
    """Channels scaled by a gate, from a bottleneck on their means."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.enter, self.leave = conv(WIDTH, width), conv(width, width)
        self.down, self.up = nn.Conv2d(width, 16, 1), nn.Conv2d(16, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        return self.leave(x * torch.sigmoid(self.up(F.relu(self.down(x.mean((2, 3), keepdim=True))))))


class GatedConvolution(nn.Module):
    """A GLU over channels: the first half times the sigmoid of the second."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Conv2d(WIDTH, 128, 3, padding=1), conv(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(F.glu(self.enter(x), 1))


class SubPixel(nn.Module):
    """Upscaling by pixel shuffle, and a 3-channel picture at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.up, self.leave = (
            conv(3, 48),
            nn.Conv2d(48, 24 * 4, 3, padding=1),
            nn.Conv2d(24, 3, 3, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(F.relu(F.pixel_shuffle(self.up(self.enter(x)), 2)))


class UNet(nn.Module):
    """Down by strides, up by transposed convolutions, skips by concatenation; a map of classes comes out."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = conv(3, 24), conv(24, 48, stride=2), conv(48, 64, stride=2)
        self.up_two, self.up_one = nn.ConvTranspose2d(64, 48, 2, 2), nn.ConvTranspose2d(48, 24, 2, 2)
        self.merge_two, self.merge_one = conv(96, 48), conv(48, 24)
        self.head = nn.Conv2d(24, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        one = self.one(x)
        two = self.two(one)
        up = self.merge_two(torch.cat([two, self.up_two(self.three(two))], 1))
        return self.head(self.merge_one(torch.cat([one, self.up_one(up)], 1)))


class ByIndex(nn.Module):
    """Channels picked by slices and by a list of numbers, put together anew."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.middle, self.leave = conv(WIDTH, 64), conv(32, 64), conv(48, 64)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        x = self.middle(x[:, ::2] + x[:, 32:])
        picked = x[:, torch.tensor([*range(0, 16), *range(40, 56)])]
        return self.leave(torch.cat([picked, x[:, -16:]], 1))


class Functional(nn.Module):
    """A bare parameter that convolves, and another that scales channels."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Parameter(0.1 * torch.randn(64, WIDTH, 3, 3))
        self.scale, self.leave = nn.Parameter(torch.ones(1, 64, 1, 1)), conv(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(F.relu(F.conv2d(x, self.kernel, padding=1)) * self.scale)


class Normalised(nn.Module):
    """Group norm, instance norm, PReLU and dropout between convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(WIDTH, 64, 3, padding=1), nn.GroupNorm(8, 64), nn.PReLU(64)),
            *(nn.Conv2d(64, 64, 3, padding=1), nn.InstanceNorm2d(64, affine=True), nn.SiLU(), nn.Dropout2d(0.1)),
            *(nn.Conv2d(64, 64, 3, padding=1), nn.GroupNorm(1, 64), nn.ReLU6()),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Flattened(nn.Module):
    """Convolutions whose positions become features of a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(conv(3, 32), nn.MaxPool2d(4), conv(32, 48), nn.AdaptiveAvgPool2d(2))
        self.head = nn.Sequential(nn.Linear(48 * 4, 64), nn.ReLU(), nn.Linear(64, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).flatten(1))
