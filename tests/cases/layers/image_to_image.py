"""Networks from images to images, with a norm of each channel of each image alone."""

from __future__ import annotations

from torch import Tensor, nn
from torch import cat as concatenated


class VolumeUNet(nn.Module):
    """Small network of nnU-Net: strided stages with affine InstanceNorm, a decoder that concatenates, two heads."""

    def __init__(self, dimensions: int = 3, widths: tuple[int, int] = (6, 8)) -> None:
        super().__init__()
        conv, turned = (getattr(nn, f"{name}{dimensions}d") for name in ("Conv", "ConvTranspose"))
        norm = getattr(nn, f"InstanceNorm{dimensions}d")

        def stage(given: int, width: int, stride: int = 1) -> nn.Sequential:
            layers: list[nn.Module] = []
            for number in range(2):
                layers += [conv(given if number == 0 else width, width, 3, 1 if number else stride, 1)]
                layers += [norm(width, affine=True), nn.LeakyReLU(0.01)]
            return nn.Sequential(*layers)

        low, high = widths
        self.first, self.second = stage(1, low), stage(low, high, 2)
        self.up = turned(high, low, 2, 2)
        self.last = stage(2 * low, low)
        self.coarse, self.fine = conv(high, 3, 1), conv(low, 3, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Segment an image, at full and half size."""
        first = self.first(x)
        second = self.second(first)
        return self.fine(self.last(concatenated([self.up(second), first], 1))), self.coarse(second)


class Residual(nn.Module):
    """Residual block of two convolutions with norms."""

    def __init__(self, width: int, norm: type[nn.Module]) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.ReflectionPad2d(1),
            nn.Conv2d(width, width, 3),
            norm(width),
            nn.ReLU(True),
            nn.ReflectionPad2d(1),
            nn.Conv2d(width, width, 3),
            norm(width),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Add the branch."""
        return x + self.body(x)


def generator(width: int = 4, norm: type[nn.Module] = nn.InstanceNorm2d) -> nn.Sequential:
    """Return a small generator of CycleGAN, with norms without weights and statistics.

    Args:
        width: Width of the first stage.
        norm: Class of the norms.
    """
    return nn.Sequential(
        nn.ReflectionPad2d(3),
        nn.Conv2d(3, width, 7),
        norm(width),
        nn.ReLU(True),
        nn.Conv2d(width, 2 * width, 3, 2, 1),
        norm(2 * width),
        nn.ReLU(True),
        Residual(2 * width, norm),
        nn.ConvTranspose2d(2 * width, width, 3, 2, 1, 1),
        norm(width),
        nn.ReLU(True),
        nn.ReflectionPad2d(3),
        nn.Conv2d(width, 3, 7),
        nn.Tanh(),
    )
