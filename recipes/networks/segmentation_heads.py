"""Decoders that turn a timm backbone into a segmenter: linear for vision transformers, a sum of stages for the rest.

- `LinearSegmenter`: a linear map classifies each patch token (Segmenter, arXiv 2105.05633, 3.2).
- `PyramidSegmenter`: the stages are brought to equal width and size, added and classified, as in the decoder of
  SegFormer (arXiv 2105.15203, 3.2), with a sum in place of the concatenation.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

WIDTH, FINEST = 128, 4  # channels of the decoder; smallest stride of a stage in use


class LinearSegmenter(nn.Module):
    """A vision transformer and a linear map from each patch token to class scores.

    Args:
        backbone: Vision transformer of timm with all tokens as output (`num_classes=0, global_pool=""`).
        classes: Number of scored classes.
    """

    def __init__(self, backbone: nn.Module, classes: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(int(backbone.num_features), classes)  # type: ignore[arg-type]

    def forward(self, images: Tensor) -> Tensor:
        """Return class scores `(N, classes, H, W)` of images `(N, 3, H, W)`."""
        backbone: Any = self.backbone
        tokens = backbone(images)[:, backbone.num_prefix_tokens :]
        scores = self.head(tokens).transpose(1, 2).unflatten(2, backbone.patch_embed.grid_size)
        return F.interpolate(scores, images.shape[-2:], mode="bilinear")

    def no_weight_decay(self) -> set[str]:
        """Return the names of parameters without weight decay, as timm's models do."""
        backbone: Any = self.backbone
        return {f"backbone.{name}" for name in backbone.no_weight_decay()}


class PyramidSegmenter(nn.Module):
    """A backbone with several stages, and a decoder that adds the stages.

    Args:
        backbone: Model of timm with `features_only=True`.
        classes: Number of scored classes.
    """

    def __init__(self, backbone: nn.Module, classes: int) -> None:
        super().__init__()
        self.backbone = backbone
        info: Any = backbone.feature_info
        self.used = [i for i, stride in enumerate(info.reduction()) if stride >= FINEST] or [len(info.reduction()) - 1]
        self.channels_last = getattr(backbone, "output_fmt", None) == "NHWC"
        self.laterals = nn.ModuleList(nn.Conv2d(info.channels()[i], WIDTH, 1) for i in self.used)
        self.fuse = nn.Sequential(nn.Conv2d(WIDTH, WIDTH, 1, bias=False), nn.BatchNorm2d(WIDTH), nn.ReLU())
        self.head = nn.Conv2d(WIDTH, classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Return class scores `(N, classes, H, W)` of images `(N, 3, H, W)`."""
        stages = self.backbone(images)
        stages = [stages[i].permute(0, 3, 1, 2) if self.channels_last else stages[i] for i in self.used]
        narrow = [lateral(stage) for lateral, stage in zip(self.laterals, stages, strict=True)]
        total = narrow[0]
        for stage in narrow[1:]:
            total = total + F.interpolate(stage, total.shape[-2:], mode="bilinear")
        return F.interpolate(self.head(self.fuse(total)), images.shape[-2:], mode="bilinear")
