"""Object detector of torchvision, transformers or ultralytics: an ordinary LightningModule.

The network is a `Detector`, pruned, distilled and exported as a map from pixels to raw predictions; the library's model
is `network.model`. Reports COCO's mean average precision (mAP) by torchmetrics, on images of original size, each
counted once on any number of processes. The loss is the mean over batches, weighted by the number of images: some
detectors divide by the objects of a batch, so the loss depends on how images are dealt out.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torchmetrics import MeanMetric
from torchmetrics.detection import MeanAveragePrecision

from prunerecover.recipes.networks.detectors.build import detector_of, named_detector
from prunerecover.recipes.networks.detectors.detector import Detector, Target
from prunerecover.recipes.tasks.evaluated_module import EvaluatedModule

Batch = tuple[list[Tensor], list[Target]]
SHOWN = ("map", "map_50", "map_75")
BACKENDS = ("faster_coco_eval", "pycocotools")  # equal scores; the first is faster


class ObjectDetector(EvaluatedModule):
    """Train and evaluate a detector; the network is `self.network`.

    Args:
        model: Name of a builder of torchvision (`ssdlite320_mobilenet_v3_large`), a folder or hub id of transformers
            (`PekingU/rtdetr_r18vd`), or a model: of torchvision, transformers, or ultralytics (`YOLO(weights)`).
        classes: Number of detected categories; a head of another size is made anew. None keeps the head, for the data's
            categories in the order of their ids, or for the ids themselves.
        pretrained: Whether to load the pretrained weights of the name.
        image_size: Height and width of the network's input, in pixels; torchvision's detectors define their own.
        model_kwargs: Further arguments of torchvision's builder, or of transformers' config; for torchvision
            `{"checkpoint_path": "$HOME/weights.pth"}` for weights of your own.
        learning_rate: Peak learning rate of AdamW.
        weight_decay: Weight decay of parameters with two or more dimensions.
        warmup_epochs: Length of the linear warmup, in epochs; may be a fraction.
        min_learning_rate: Learning rate at the end of the cosine.

    Raises:
        ValueError: If the model does not exist, its weights cannot be loaded, or the model is no detector.
    """

    trained = "network"
    label_index: Tensor

    def __init__(
        self,
        model: str | nn.Module = "ssdlite320_mobilenet_v3_large",
        classes: int | None = None,
        pretrained: bool = False,
        image_size: int = 640,
        model_kwargs: dict[str, Any] | None = None,
        learning_rate: float = 1e-4,
        weight_decay: float = 1e-4,
        warmup_epochs: float = 0.0,
        min_learning_rate: float = 1e-6,
    ) -> None:
        super().__init__(learning_rate, weight_decay, warmup_epochs, min_learning_rate)
        self.save_hyperparameters(ignore=["model"] if isinstance(model, nn.Module) else [])
        self.network: Detector = (
            detector_of(model, image_size)
            if isinstance(model, nn.Module)
            else named_detector(model, pretrained, classes, image_size, model_kwargs or {})
        )
        alone = torch.arange(self.network.background, self.network.classes)
        self.register_buffer("label_index", alone, persistent=False)
        self.val_map, self.test_map = mean_average_precision(), mean_average_precision()
        self.val_loss, self.test_loss = MeanMetric(), MeanMetric()

    def setup(self, stage: str) -> None:
        """Map the data's categories to the head's classes."""
        categories = getattr(getattr(self.trainer, "datamodule", None), "categories", None)
        if categories:
            self.label_index = head_classes(self.network, list(categories)).to(self.device)

    def forward(self, images: Sequence[Tensor]) -> list[dict[str, Tensor]]:
        """Return `boxes`, `scores` and `labels` (the head's classes) of images `(3, H, W)` in [0, 1]."""
        batch = self.network.prepare(images)
        return self.network.detections(self.network(batch.pixels), batch)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the sum of the detector's losses."""
        images, targets = batch
        prepared = self.network.prepare(images, self._learned(targets))
        losses = self.network.losses(self.network(prepared.pixels), prepared)
        loss = torch.stack(list(losses.values())).sum()
        self.log("train_loss", loss, prog_bar=True, batch_size=len(images))
        return loss

    def on_validation_epoch_end(self) -> None:
        """Log the mAP over IoU 0.5 to 0.95, and at 0.5 and 0.75."""
        self._log_map("val_", self.val_map)

    def on_test_epoch_end(self) -> None:
        """Log the mAP over IoU 0.5 to 0.95, and at 0.5 and 0.75."""
        self._log_map("test_", self.test_map)

    def predict_step(self, batch: Batch | list[Tensor], batch_idx: int) -> list[dict[str, Tensor]]:
        """Return `boxes`, `scores` and `labels` (the head's classes) of each image."""
        return self(batch[0] if isinstance(batch, tuple) else batch)  # type: ignore[no-any-return]

    def evaluate(self, batch: Batch, stage: str, where: tuple[int, int]) -> None:
        """Score the counted images of a batch; if none is counted, the network still runs on all images, for DDP."""
        given = len(batch[0])
        count = self.counted(given, where)
        images, targets = batch[0][: count or given], batch[1][: count or given]
        prepared = self.network.prepare(images, self._learned(targets))
        output = self.network(prepared.pixels)
        detected, true = self.network.detections(output, prepared)[:count], self._in_head_classes(targets)[:count]
        # The metric gathers equally many images from each process: empty images fill up, and change no score.
        blank = [nothing(self.device)] * (given - count)
        metric: MeanAveragePrecision = getattr(self, f"{stage}_map")
        metric.update(detected + blank, true + blank)
        mean: MeanMetric = getattr(self, f"{stage}_loss")
        if count:
            mean.update(torch.stack(list(self.network.losses(output, prepared).values())).sum(), count)
        self.log(f"{stage}_loss", mean, batch_size=given)

    def _log_map(self, prefix: str, metric: MeanAveragePrecision) -> None:
        scores = metric.compute()
        shown = {f"{prefix}{name}": scores[name].to(self.device) for name in SHOWN}
        self.log_dict(shown, prog_bar=True, sync_dist=True, reduce_fx="max")  # every process has the same already
        metric.reset()

    def _in_head_classes(self, targets: Sequence[Target]) -> list[Target]:
        """Return targets with the head's classes.

        Raises:
            ValueError: If a label belongs to no class.
        """
        most = len(self.label_index) - 1
        wrong = [int(label) for target in targets for label in target["labels"] if not 0 <= label <= most]
        if wrong:
            raise ValueError(
                f"Expected labels from 0 to {most}, as the head detects {most + 1} categories, but got {wrong[0]}. Is "
                "it the model of these data? classes=... makes a head anew."
            )
        return [{**target, "labels": self.label_index[target["labels"]]} for target in targets]

    def _learned(self, targets: Sequence[Target]) -> list[Target]:
        """Return boxes and the head's classes for training, without crowds and empty boxes."""
        found = []
        for target in self._in_head_classes(targets):
            kept = (target["boxes"][:, 2:] > target["boxes"][:, :2]).all(1)
            if "iscrowd" in target:
                kept &= target["iscrowd"] == 0
            found.append({name: target[name][kept] for name in ("boxes", "labels")})
        return found


def nothing(device: torch.device) -> Target:
    """Return the objects, and the detections, of an empty image."""
    none = torch.zeros(0, device=device)
    return {"boxes": none.view(0, 4), "scores": none, "labels": none.long()}


def mean_average_precision() -> MeanAveragePrecision:
    """Return COCO's metric with the fastest installed back end.

    Raises:
        ModuleNotFoundError: If no back end is installed.
    """
    backend = next((name for name in BACKENDS if find_spec(name)), None)
    if backend is None:
        raise ModuleNotFoundError(
            f"Expected {' or '.join(BACKENDS)} for the mAP, but neither is installed. pip install "
            "'prunerecover[detection]'"
        )
    # torchmetrics' own thresholds are rounded to single precision, and recalls of 0.1 or 0.2 then miss theirs.
    iou, recall = np.linspace(0.5, 0.95, 10).tolist(), np.linspace(0, 1, 101).tolist()
    metric = MeanAveragePrecision(iou_thresholds=iou, rec_thresholds=recall, backend=backend)  # type: ignore[arg-type]
    metric.warn_on_many_detections = False  # COCO's protocol counts the best hundred
    return metric


def head_classes(network: Detector, categories: Sequence[int]) -> Tensor:
    """Return the head's class of each category, `(categories,)`.

    A head is for the categories in the order of their ids, or, in weights trained on COCO, for the ids themselves.

    Args:
        network: Detector with the head.
        categories: Ids of the data's categories.

    Raises:
        ValueError: If the head fits neither.
    """
    if len(categories) + network.background == network.classes:
        return torch.arange(network.background, network.classes)
    if max(categories) + 1 == network.classes:
        return torch.tensor(categories)
    raise ValueError(
        f"Expected a head for the {len(categories)} categories of the data, or for their ids up to {max(categories)}, "
        f"but {type(getattr(network, 'model', network)).__name__} scores {network.classes} classes"
        f"{', the background among them' * network.background}. Pass classes={len(categories)}."
    )
