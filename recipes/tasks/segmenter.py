"""Semantic segmenter of transformers (SegFormer, UperNet), of torchvision, or a timm backbone with a decoder.

The network is an ordinary model of its library, pruned in the same way as a classifier. Reports the mean intersection
over union (mIoU) over the classes in the data and pixel accuracy, and after a test a table of the classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor
from torch.nn import functional as F
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassConfusionMatrix, MulticlassJaccardIndex

from prunerecover.display.markdown import table
from prunerecover.recipes.data.segmentation_data import IGNORED
from prunerecover.recipes.networks.segmentation_networks import build_segmenter, scores_of
from prunerecover.recipes.tasks.evaluated_module import Batch, VisionModule


class ImageSegmenter(VisionModule):
    """Train and evaluate a segmenter; the network is `self.network`.

    Args:
        classes: Number of scored classes, or their names in order, for the table.
        model: Name of a timm backbone (a timm name, `local-dir:/path`, or a hub id), with a linear decoder for a vision
            transformer and a decoder that adds up the stages otherwise; a folder or hub id of transformers (SegFormer,
            UperNet), or the type alone (`segformer`); or a name of torchvision (`deeplabv3_mobilenet_v3_large`).
        pretrained: Whether to load the pretrained weights of the name. Weights for other classes get a new last layer.
        image_size: Size of the images, in pixels: a number, or height and width; position embeddings are interpolated
            to the size.
        model_kwargs: Further arguments of `timm.create_model`, for example `{"drop_path_rate": 0.1}`; entries of the
            configuration for transformers; arguments of torchvision's constructor.
        learning_rate: Peak learning rate of AdamW.
        weight_decay: Weight decay of parameters with two or more dimensions.
        warmup_epochs: Length of the linear warmup, in epochs; may be a fraction.
        min_learning_rate: Learning rate at the end of the cosine.

    Raises:
        ValueError: If the network does not exist, or scores another number of classes.
    """

    trained = "network"

    def __init__(
        self,
        classes: int | list[str],
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
        self.names = [str(i) for i in range(classes)] if isinstance(classes, int) else list(classes)
        n = len(self.names)
        self.network = build_segmenter(model, n, pretrained, image_size, model_kwargs or {})
        metrics = MetricCollection(
            {
                "miou": MulticlassJaccardIndex(n, ignore_index=IGNORED),
                "pixel_accuracy": MulticlassAccuracy(n, ignore_index=IGNORED, average="micro"),
            }
        )
        self.val_metrics, self.test_metrics = metrics.clone(prefix="val_"), metrics.clone(prefix="test_")
        self.confusion = MulticlassConfusionMatrix(n, ignore_index=IGNORED)

    def loss_of(self, scores: Tensor, target: Tensor) -> Tensor:
        """Return the cross-entropy over the scored pixels."""
        return F.cross_entropy(scores, target, ignore_index=IGNORED)

    def scored(self, target: Tensor) -> int:
        """Return the number of scored pixels."""
        return int((target != IGNORED).sum())

    def forward(self, images: Tensor) -> Tensor:
        """Return class scores `(N, classes, H, W)`.

        Raises:
            ValueError: If the network scores another number of classes.
        """
        scores = scores_of(self.network(images), (images.shape[-2], images.shape[-1]))
        if scores.shape[1] != len(self.names):
            raise ValueError(
                f"Expected a network that scores {len(self.names)} classes, but it scores {scores.shape[1]}. Set "
                f"classes={scores.shape[1]}, or leave the number of classes out of model_kwargs."
            )
        return scores

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the loss."""
        images, target = batch
        self._check_classes(target)
        loss = self.loss_of(self(images), target)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def update_metrics(self, metrics: MetricCollection, scores: Tensor, target: Tensor) -> None:
        """Add scored images to the metrics, and to the table of a test."""
        self._check_classes(target)
        classes = scores.argmax(1)
        metrics.update(classes, target)
        if metrics is self.test_metrics:
            self.confusion.update(classes, target)

    def on_test_epoch_end(self) -> None:
        """Show the table of the classes."""
        counts = self.confusion.compute()
        self.confusion.reset()
        rank_zero_info(f"\n{per_class_table(counts, self.names)}")

    def _check_classes(self, target: Tensor) -> None:
        """Raise ValueError for annotations of other classes: a GPU would fail without a message, for good."""
        scored = target[target != IGNORED]
        if scored.numel() and not 0 <= int(scored.min()) <= int(scored.max()) < len(self.names):
            found = int(scored.max())
            raise ValueError(
                f"Expected annotations of the classes 0 to {len(self.names) - 1}, but got class {found}. Set "
                f"classes={found + 1}, or say in the data what is not scored: ignore for one value, first_class "
                "where classes do not begin at 0."
            )

    def predict_step(self, batch: Batch | Tensor, batch_idx: int) -> Tensor:
        """Return the class of each pixel, `(N, H, W)`."""
        images = batch if isinstance(batch, Tensor) else batch[0]
        return self(images).argmax(1)  # type: ignore[no-any-return]


def per_class_table(counts: Tensor, names: Sequence[str]) -> str:
    """Render IoU and accuracy of each class, and its share of the scored pixels, as Markdown.

    Args:
        counts: Pixels by true and predicted class, `(classes, classes)`.
        names: Names of the classes.
    """
    hits, true = counts.diagonal().double(), counts.sum(1).double()
    either = true + counts.sum(0) - hits
    rows = [
        (name, *(f"{100 * float(value[i]):.1f}" for value in (hits / either, hits / true, true / true.sum())))
        for i, name in enumerate(names)
    ]
    return table(("class", "IoU, %", "accuracy, %", "of the pixels, %"), rows)
