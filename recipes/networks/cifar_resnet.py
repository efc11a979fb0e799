"""Residual networks of He et al. (arXiv 1512.03385, 4.2) for 32 x 32 images, under timm names.

Three stages of n blocks with 16, 32 and 64 channels. Where the size halves, the shortcut takes every second pixel and
pads the channels with zeros (option A), without parameters. Importing this module registers `cifar_resnet20`,
`cifar_resnet32`, `cifar_resnet44`, `cifar_resnet56` and `cifar_resnet110`.
"""

from __future__ import annotations

from typing import Any

from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from torch import Tensor, nn
from torch.nn import functional as F

CONFIG = {
    "input_size": (3, 32, 32),
    "num_classes": 10,
    "mean": (0.485, 0.456, 0.406),
    "std": (0.229, 0.224, 0.225),
    "interpolation": "bilinear",
    "crop_pct": 1.0,
    "first_conv": "conv1",
    "classifier": "linear",
}
DEPTHS = (20, 32, 44, 56, 110)
default_cfgs = generate_default_cfgs({f"cifar_resnet{depth}.untrained": CONFIG for depth in DEPTHS})


class PaddedShortcut(nn.Module):
    """Shortcut with every second pixel, and zeros for the new channels (half of them on either side)."""

    def __init__(self, new_channels: int) -> None:
        super().__init__()
        self.new_channels = new_channels

    def forward(self, x: Tensor) -> Tensor:
        """Return `(N, C + new_channels, H / 2, W / 2)`."""
        before = self.new_channels // 2
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, before, self.new_channels - before))


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions with a shortcut around them."""

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        stride = 1 if in_channels == channels else 2
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.shortcut = nn.Identity() if stride == 1 else PaddedShortcut(channels - in_channels)

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of both paths after a ReLU."""
        residual = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(residual)) + self.shortcut(x))


class CifarResNet(nn.Module):
    """Network of `6 * blocks + 2` layers.

    Args:
        blocks: Blocks per stage.
        num_classes: Size of the head.
        in_chans: Channels of the images.
    """

    def __init__(self, blocks: int = 3, num_classes: int = 10, in_chans: int = 3) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.conv1 = nn.Conv2d(in_chans, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = _stage(blocks, 16, 16)
        self.layer2 = _stage(blocks, 16, 32)
        self.layer3 = _stage(blocks, 32, 64)
        self.linear = nn.Linear(64, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of images `(N, in_chans, 32, 32)`."""
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(x.mean((2, 3)))  # type: ignore[no-any-return]


def _stage(blocks: int, in_channels: int, channels: int) -> nn.Sequential:
    return nn.Sequential(*(BasicBlock(in_channels if i == 0 else channels, channels) for i in range(blocks)))


def _register(depth: int) -> None:
    """Register the network of a depth with timm, which reads the names of a function and of its module."""
    variant = f"cifar_resnet{depth}"

    def create(pretrained: bool = False, **kwargs: Any) -> nn.Module:
        return build_model_with_cfg(CifarResNet, variant, pretrained, blocks=depth // 6, **kwargs)  # type: ignore[no-any-return]

    create.__name__ = variant
    register_model(create)


for _depth in DEPTHS:
    _register(_depth)
