"""Interface for a LightningModule that trains, prunes and evaluates detectors of any library.

A library's forward resizes, computes, matches and suppresses, and returns losses in training and a varying number of
boxes in evaluation. The interface separates the steps. `forward` is pruned, distilled and exported: a map from a tensor
of pixels to raw predictions, with shapes that depend on the pixels alone. `prepare` comes before, `losses` and
`detections` come after. Losses are the same function in training and in evaluation, as planning requires.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  (the name everyone uses)

Target = dict[str, Tensor]  # boxes (K, 4) as x1 y1 x2 y2 in pixels, labels (K,), and further entries of the data
Size = tuple[int, int]  # height, width


@dataclass(frozen=True)
class Prepared:
    """A batch in the form of the network's input.

    Attributes:
        pixels: Normalised pixels, `(N, 3, H, W)`.
        sizes: Size of each image within the pixels; the rest, on the right and below, is padding.
        original: Original size of each image.
        targets: Boxes and labels of each image, in the coordinates of the pixels; None without targets.
    """

    pixels: Tensor
    sizes: tuple[Size, ...]
    original: tuple[Size, ...]
    targets: list[Target] | None


class Detector(nn.Module, ABC):
    """A network for object detection.

    Attributes:
        model: Model of the library, with the same weights.
        classes: Number of classes scored by the head, including a background class.
        background: 1 if class 0 is the background, else 0.
    """

    model: Any
    classes: int
    background: int

    @property
    @abstractmethod
    def input_shape(self) -> tuple[int, int, int]:
        """Shape of the pixels of an image, `(3, H, W)`; the smallest square where images keep their aspect ratio."""

    @abstractmethod
    def prepare(self, images: Sequence[Tensor], targets: Sequence[Target] | None = None) -> Prepared:
        """Resize and normalise.

        Args:
            images: Images, `(3, H, W)` in [0, 1], of any size.
            targets: Boxes in pixels of the images, and class indices of the head.
        """

    @abstractmethod
    def forward(self, pixels: Tensor) -> Mapping[str, Any]:
        """Return raw predictions of pixels `(N, 3, H, W)`; `logits`, `(N, boxes, classes)`, come first if present."""

    @abstractmethod
    def losses(self, output: Mapping[str, Any], batch: Prepared) -> dict[str, Tensor]:
        """Return the parts of the loss, each a mean over the batch, from the output of `forward` for the pixels."""

    @abstractmethod
    def detections(self, output: Mapping[str, Any], batch: Prepared) -> list[dict[str, Tensor]]:
        """Return `boxes`, `(K, 4)` in pixels of the original image, `scores` and `labels`, `(K,)`, of each image."""


class SquareDetector(Detector):
    """A detector of squares, without a background class.

    Args:
        model: Model of the library.
        image_size: Height and width of the network's input, in pixels.
    """

    background = 0

    def __init__(self, model: nn.Module, image_size: int) -> None:
        super().__init__()
        self.model, self.image_size = model, image_size

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Shape of the squares."""
        return 3, self.image_size, self.image_size


def scale_of(size: Size, original: Size) -> Tensor:
    """Return the factors `(4,)` for boxes when an image changes its size.

    >>> scale_of((10, 30), (20, 20))
    tensor([1.5000, 0.5000, 1.5000, 0.5000])
    """
    y, x = size[0] / original[0], size[1] / original[1]
    return torch.tensor([x, y, x, y])


def fitted(
    images: Sequence[Tensor], targets: Sequence[Target] | None, size: int, *, keep_shape: bool, fill: float = 0.0
) -> Prepared:
    """Resize images of any size to squares, and move their boxes.

    Args:
        images: Images, `(3, H, W)`.
        targets: Targets of each image, or None.
        size: Side of the squares, in pixels.
        keep_shape: Whether to keep the aspect ratio and pad on the right or below; otherwise images are stretched.
        fill: Value of the padding.
    """
    from torchvision.transforms.v2.functional import resize

    original = tuple((int(image.shape[-2]), int(image.shape[-1])) for image in images)
    sizes = tuple(_inside(given, size) if keep_shape else (size, size) for given in original)
    squares = [
        F.pad(resize(image, list(inside), antialias=True), (0, size - inside[1], 0, size - inside[0]), value=fill)
        for image, inside in zip(images, sizes, strict=True)
    ]
    if targets is None:
        return Prepared(torch.stack(squares), sizes, original, None)
    moved = [
        {**target, "boxes": target["boxes"] * scale_of(inside, given).to(target["boxes"])}
        for target, inside, given in zip(targets, sizes, original, strict=True)
    ]
    return Prepared(torch.stack(squares), sizes, original, moved)


def _inside(given: Size, size: int) -> Size:
    """Return the size of an image resized to a square, with the longer side as long as the square's.

    >>> _inside((100, 200), 64)
    (32, 64)
    """
    scale = size / max(given)
    return max(1, round(given[0] * scale)), max(1, round(given[1] * scale))


def relative_centres(boxes: Tensor, size: Size) -> Tensor:
    """Return boxes `(K, 4)` as centre, width and height, as shares of an image's width and height."""
    from torchvision.ops import box_convert

    height, width = size
    found: Tensor = box_convert(boxes, "xyxy", "cxcywh") / boxes.new_tensor([width, height, width, height])
    return found
