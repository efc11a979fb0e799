"""A small detector in the form that YOLO has: stages that read earlier ones by number, over several strides."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ConvNormAct(nn.Module):
    """A convolution with its norm and activation, which `fold` joins."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
        self.bn = nn.BatchNorm2d(outputs)
        self.act = nn.SiLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.bn(self.conv(x)))


class Bottleneck(nn.Module):
    """Two convolutions, added to what they read."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.cv1, self.cv2 = ConvNormAct(channels, channels), ConvNormAct(channels, channels, 3)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.cv2(self.cv1(x))


class Concat(nn.Module):
    """Several maps as one."""

    def forward(self, maps: list[Tensor]) -> Tensor:
        return torch.cat(maps, 1)


class Plain(nn.Module):
    """A stage without a shortcut, of as many channels as it reads."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.cv1, self.cv2 = ConvNormAct(channels, channels // 2), ConvNormAct(channels // 2, channels, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.cv2(self.cv1(x))


class RoutedDetector(nn.Module):
    """Each stage names what it reads by `f`, as the number of an earlier stage or several; -1 is the last one."""

    def __init__(self) -> None:
        super().__init__()
        stages = [
            (-1, ConvNormAct(3, 8, 3, 2)),
            (-1, ConvNormAct(8, 16, 3, 2)),
            (-1, Plain(16)),
            (-1, ConvNormAct(16, 16, 3, 2)),
            (-1, Plain(16)),
            (-1, Bottleneck(16)),
            (2, ConvNormAct(16, 16, 3, 2)),
            ([-1, 5], Concat()),
            (-1, ConvNormAct(32, 16)),
            (-1, nn.Conv2d(16, 6, 1)),
        ]
        self.model = nn.Sequential(*(stage for _, stage in stages))
        for number, (source, stage) in enumerate(stages):
            stage.f, stage.i = source, number  # type: ignore[assignment]

    def forward(self, x: Tensor) -> Tensor:
        done: list[Tensor] = []
        for stage in self.model:
            given = [x if f == -1 else done[f] for f in stage.f] if isinstance(stage.f, list) else None
            x = stage(given if given is not None else x if stage.f == -1 else done[stage.f])
            done.append(x)
        return x


def fold(model: nn.Module) -> None:
    """Join convolutions and norms, as detectors do before export."""
    for module in model.modules():
        if isinstance(module, ConvNormAct) and not isinstance(module.bn, nn.Identity):
            module.conv = torch.nn.utils.fuse_conv_bn_eval(module.conv, module.bn)
            module.bn = nn.Identity()  # type: ignore[assignment]
