"""Handwritten networks, each with an obstacle to removing layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.ops import Conv2dNormActivation


class UNet(nn.Module):
    """Two scales, a concatenated skip, an upsampling, and a head of a single convolution."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first = self.double(3, width)
        self.second = self.double(width, 2 * width)
        self.third = self.double(2 * width, 2 * width)
        self.up = self.double(4 * width, width)
        self.last = self.double(2 * width, width)
        self.head = nn.Conv2d(width, 2, 1)

    @staticmethod
    def double(before: int, after: int) -> nn.Sequential:
        layers = (Conv2dNormActivation(width, after, 3, bias=True) for width in (before, after))
        return nn.Sequential(*(part for layer in layers for part in layer))

    def forward(self, x: Tensor) -> Tensor:
        first = self.first(x)
        second = self.second(F.max_pool2d(first, 2))
        third = self.third(F.max_pool2d(second, 2))
        up = self.up(torch.cat([F.interpolate(third, scale_factor=2.0), second], 1))
        return self.head(self.last(torch.cat([F.interpolate(up, scale_factor=2.0), first], 1)))


class Boxes(nn.Module):
    """Detector's head: for each of two scales a branch of boxes and a branch of classes, each of two convolutions."""

    def __init__(self, widths: tuple[int, int], classes: int) -> None:
        super().__init__()
        self.boxes = nn.ModuleList(self.branch(width, 4) for width in widths)
        self.classes = nn.ModuleList(self.branch(width, classes) for width in widths)

    @staticmethod
    def branch(width: int, made: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.SiLU(), nn.Conv2d(width, made, 1))

    def forward(self, features: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        maps = [torch.cat([b(x), c(x)], 1) for x, b, c in zip(features, self.boxes, self.classes, strict=True)]
        return torch.cat([m.flatten(2) for m in maps], 2), maps


class Detector(nn.Module):
    """A backbone of six convolutions of two scales, and a head of eight."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = self.conv(3, 8, 2)
        self.body = nn.Sequential(self.conv(8, 8), self.conv(8, 16, 2), self.conv(16, 16), self.conv(16, 16))
        self.deep = nn.Sequential(self.conv(16, 32, 2), self.conv(32, 32), self.conv(32, 32), self.conv(32, 32))
        self.detect = Boxes((16, 32), 3)

    @staticmethod
    def conv(before: int, after: int, stride: int = 1) -> nn.Sequential:
        return Conv2dNormActivation(before, after, 3, stride, activation_layer=nn.SiLU)

    def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        shallow = self.body(self.stem(x))
        return self.detect([shallow, self.deep(shallow)])


class Split(nn.Module):
    """Convolution whose output is split; a half goes through two more convolutions, and all parts are concatenated."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.before = nn.Conv2d(3, width, 3, padding=1)
        self.cut = nn.Conv2d(width, width, 1)
        self.one = nn.Conv2d(width // 2, width // 2, 3, padding=1)
        self.two = nn.Conv2d(width // 2, width // 2, 3, padding=1)
        self.join = nn.Conv2d(2 * width, width, 1)
        self.head = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        parts = list(self.cut(self.before(x)).chunk(2, 1))
        parts.append(F.silu(self.one(parts[-1])))
        parts.append(F.silu(self.two(parts[-1])) + parts[-1])
        return self.head(self.join(torch.cat(parts, 1)).mean((2, 3)))


class InPlaceSums(nn.Module):
    """Residual branches with in-place additions, to the stream and from it, and in-place activations after them."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.a = nn.Conv2d(width, width, 3, padding=1)
        self.b = nn.Conv2d(width, width, 3, padding=1)
        self.c = nn.Conv2d(width, width, 1)
        self.relu = nn.ReLU(inplace=True)
        self.head = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        out = self.b(self.relu(self.a(x)))
        out += x
        out = self.relu(out)
        more = self.c(out)
        more *= 2.0
        out = out + more
        return self.head(out.mean((2, 3)))


class PostNorm(nn.Module):
    """Stream with a norm after each sum."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.embed = nn.Linear(5, width)
        self.fc1, self.fc2 = nn.Linear(width, 12), nn.Linear(12, width)
        self.fc3, self.fc4 = nn.Linear(width, 12), nn.Linear(12, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.act = nn.GELU()
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        x = self.norm1(x + self.fc2(self.act(self.fc1(x))))
        x = self.norm2(x + self.fc4(F.gelu(self.fc3(x))))
        return self.head(x)


class Shared(nn.Module):
    """A layer called twice, a tied weight, and a layer for training alone."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.stem = nn.Linear(4, width)
        self.twice = nn.Linear(width, width)
        self.own, self.tied = nn.Linear(width, width), nn.Linear(width, width)
        self.tied.weight = self.own.weight
        self.plain = nn.Linear(width, width)
        self.extra = nn.Linear(width, width)
        self.head = nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.twice(torch.relu(self.twice(self.stem(x))))
        x = torch.tanh(self.plain(self.tied(torch.tanh(self.own(x)))))
        if self.training:
            x = x + self.extra(x)
        return self.head(x)


class ByValue(nn.Module):
    """Branches chosen by the data."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.stem, self.positive, self.negative = (nn.Linear(width, width) for _ in range(3))
        self.last, self.head = nn.Linear(width, width), nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = torch.relu(self.positive(x) if float(x.sum()) > 0 else self.negative(x))
        return self.head(torch.relu(self.last(x)))


class LongInputs(nn.Module):
    """Two layers, the second for long inputs alone."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.long, self.head = nn.Linear(width, width), nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.long(x) if x.shape[1] > 4 else x)


class Recurrent(nn.Module):
    """Linears around an LSTM, with weights outside all layers."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.embed = nn.Linear(4, width)
        self.fc = nn.Linear(width, width)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.after = nn.Linear(width, width)
        self.head = nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        x, _ = self.lstm(torch.relu(self.fc(self.embed(x))))
        return self.head(torch.relu(self.after(x[:, -1])))


class TwoInputs(nn.Module):
    """Two inputs, two heads, named results, and a stream read by both heads."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.image, self.text = nn.Linear(4, width), nn.Linear(3, width)
        self.mix = nn.Linear(2 * width, width)
        self.deep = nn.Linear(width, width)
        self.label, self.score = nn.Linear(width, 3), nn.Linear(width, 1)

    def forward(self, image: Tensor, text: Tensor) -> dict[str, Tensor]:
        x = torch.relu(self.mix(torch.cat([self.image(image), self.text(text)], -1)))
        x = x - F.gelu(self.deep(x))
        return {"label": self.label(x), "score": self.score(x)}


class Gated(nn.Module):
    """Gated MLPs with gate and value as halves of a single linear, and another with a learnt scale at the end."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.embed = nn.Linear(4, width)
        self.norm = nn.LayerNorm(width)
        self.both = nn.Linear(width, 2 * 12)
        self.down = nn.Linear(12, width)
        self.scale = nn.Parameter(torch.full((width,), 0.5))
        self.fc = nn.Linear(width, width)
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        gate, value = self.both(self.norm(x)).chunk(2, -1)
        x = x + self.scale * self.down(F.silu(gate) * value)
        x = x + self.scale * torch.tanh(self.fc(x))
        return self.head(x)


class Sequence1d(nn.Module):
    """1-D convolutions, dilated and grouped, with GroupNorm, weights in `Conv1d` of stride 2, and a GLU."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv1d(2, width, 5, padding=2)
        self.dilated = nn.Conv1d(width, width, 3, padding=2, dilation=2)
        self.norm = nn.GroupNorm(2, width)
        self.grouped = nn.Conv1d(width, width, 3, padding=1, groups=2)
        self.glu = nn.Conv1d(width, 2 * width, 1)
        self.down = nn.Conv1d(width, 2 * width, 4, 2, 1)
        self.up = nn.ConvTranspose1d(2 * width, width, 4, 2, 1)
        self.late = nn.Conv1d(width, width, 3, padding=1)
        self.head = nn.Conv1d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = F.relu(self.norm(self.dilated(x))) + x
        x = F.elu(self.grouped(x))
        x = F.glu(self.glu(x), 1)
        return self.head(F.relu(self.late(self.up(F.relu(self.down(x))))))
