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
default_cfgs = generate_default_cfgs({f"cifar_resnet{depth}.untrained": CONFIG for depth in (20, 32, 44, 56, 110)})


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


def _create(variant: str, blocks: int, pretrained: bool, kwargs: dict[str, Any]) -> nn.Module:
    model: nn.Module = build_model_with_cfg(CifarResNet, variant, pretrained, blocks=blocks, **kwargs)
    return model


@register_model  # type: ignore[untyped-decorator]
def cifar_resnet20(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """ResNet-20."""
    return _create("cifar_resnet20", 3, pretrained, kwargs)


@register_model  # type: ignore[untyped-decorator]
def cifar_resnet32(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """ResNet-32."""
    return _create("cifar_resnet32", 5, pretrained, kwargs)


@register_model  # type: ignore[untyped-decorator]
def cifar_resnet44(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """ResNet-44."""
    return _create("cifar_resnet44", 7, pretrained, kwargs)


@register_model  # type: ignore[untyped-decorator]
def cifar_resnet56(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """ResNet-56."""
    return _create("cifar_resnet56", 9, pretrained, kwargs)


@register_model  # type: ignore[untyped-decorator]
def cifar_resnet110(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """ResNet-110."""
    return _create("cifar_resnet110", 18, pretrained, kwargs)
