"""Small detector in YOLO's form: stages that read earlier ones by number, over several strides."""

from __future__ import annotations

import torch
from cases.models.cut_in_parts import Bottleneck, ConvNorm
from torch import Tensor, nn


class Concat(nn.Module):
    """Concatenation of several maps."""

    def forward(self, maps: list[Tensor]) -> Tensor:
        return torch.cat(maps, 1)


class RoutedDetector(nn.Module):
    """Stages with inputs by `f`, the number of an earlier stage or several; -1 is the last."""

    def __init__(self) -> None:
        super().__init__()
        stages = [
            (-1, ConvNorm(3, 8, 3, 2)),
            (-1, ConvNorm(8, 16, 3, 2)),
            (-1, Bottleneck(16, 8, 1, shortcut=False)),
            (-1, ConvNorm(16, 16, 3, 2)),
            (-1, Bottleneck(16, 8, 1, shortcut=False)),
            (-1, Bottleneck(16, 16, 1, shortcut=True)),
            (2, ConvNorm(16, 16, 3, 2)),
            ([-1, 5], Concat()),
            (-1, ConvNorm(32, 16)),
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
        if isinstance(module, ConvNorm) and not isinstance(module.bn, nn.Identity):
            module.conv = torch.nn.utils.fuse_conv_bn_eval(module.conv, module.bn)
            module.bn = nn.Identity()  # type: ignore[assignment]
