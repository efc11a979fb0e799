"""A semantic segmenter around any timm vision transformer: Segmenter with a linear decoder (arXiv 2105.05633, 3.2).

The transformer's patch tokens are classified one by one, and the class scores are brought to the image's size. The
transformer is an ordinary timm model at `network.backbone`, so what prunes a classifier prunes a segmenter. Reports the
mean intersection over union (mIoU) over the classes that occur, and pixel accuracy.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassJaccardIndex

from prunerecover.recipes.data.segmentation_data import IGNORED
from prunerecover.recipes.networks.model_names import timm_name
from prunerecover.recipes.tasks.vision_module import Batch, VisionModule


class LinearSegmenter(nn.Module):
    """A vision transformer and a linear map from each patch token to class scores.

    Args:
        backbone: A timm vision transformer that returns all tokens (`num_classes=0, global_pool=""`).
        classes: How many are scored.
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
        """Return the names of parameters that weight decay spares, as timm's models do."""
        backbone: Any = self.backbone
        return {f"backbone.{name}" for name in backbone.no_weight_decay()}


class ImageSegmenter(VisionModule):
    """Train and evaluate a segmenter; the network is `self.network`.

    Args:
        classes: How many are scored.
        model: The transformer: a timm name, `local-dir:/path`, or a hub id.
        pretrained: Load the weights that come with the name.
        image_size: Of the images, in pixels: one number, or height and width; position embeddings are interpolated to
            it.
        model_kwargs: Further arguments of `timm.create_model`, for example `{"drop_path_rate": 0.1}`.
        learning_rate: Peak learning rate of AdamW.
        weight_decay: Weight decay of parameters with two or more dimensions.
        warmup_epochs: Length of the linear warmup, in epochs; may be a fraction.
        min_learning_rate: Where the cosine ends.
    """

    def __init__(
        self,
        classes: int,
        model: str = "deit_tiny_patch16_224",
        pretrained: bool = False,
        image_size: int | tuple[int, int] = 512,
        model_kwargs: dict[str, Any] | None = None,
        learning_rate: float = 1e-4,
        weight_decay: float = 0.01,
        warmup_epochs: float = 0.0,
        min_learning_rate: float = 1e-6,
    ) -> None:
        super().__init__(learning_rate, weight_decay, warmup_epochs, min_learning_rate)
        self.save_hyperparameters()
        self.network = LinearSegmenter(_backbone(model, pretrained, image_size, model_kwargs or {}), classes)
        metrics = MetricCollection(
            {
                "miou": MulticlassJaccardIndex(classes, ignore_index=IGNORED),
                "pixel_accuracy": MulticlassAccuracy(classes, ignore_index=IGNORED, average="micro"),
            }
        )
        self.val_metrics, self.test_metrics = metrics.clone(prefix="val_"), metrics.clone(prefix="test_")

    @property
    def trained(self) -> nn.Module:
        """The transformer and its decoder."""
        return self.network

    def loss_of(self, scores: Tensor, target: Tensor) -> Tensor:
        """Return the cross-entropy over the scored pixels."""
        return F.cross_entropy(scores, target, ignore_index=IGNORED)

    def forward(self, images: Tensor) -> Tensor:
        """Return class scores `(N, classes, H, W)`."""
        return self.network(images)  # type: ignore[no-any-return]

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the loss."""
        images, target = batch
        loss = self.loss_of(self(images), target)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def predict_step(self, batch: Batch | Tensor, batch_idx: int) -> Tensor:
        """Return the class of each pixel, `(N, H, W)`."""
        images = batch if isinstance(batch, Tensor) else batch[0]
        return self(images).argmax(1)  # type: ignore[no-any-return]


def _backbone(name: str, pretrained: bool, image_size: int | tuple[int, int], kwargs: dict[str, Any]) -> nn.Module:
    import timm

    options = {"num_classes": 0, "global_pool": "", "img_size": image_size, **kwargs}
    try:
        model: nn.Module = timm.create_model(timm_name(name), pretrained=pretrained, **options)
    except TypeError as error:  # most other families take no img_size
        raise ValueError(_refusal(name, f"cannot be made as one: {error}")) from error
    if not _is_vision_transformer(model):
        raise ValueError(_refusal(name, f"is a {type(model).__name__}"))
    return model


def _is_vision_transformer(model: nn.Module) -> bool:
    from timm.models import VisionTransformer

    return isinstance(model, VisionTransformer)


def _refusal(name: str, reason: str) -> str:
    return f"Expected model to be a vision transformer of timm, but {name!r} {reason}. Try deit_tiny_patch16_224."
