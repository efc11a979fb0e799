"""Image classifier around any timm model: an ordinary LightningModule without knowledge of pruning.

Trains with cross-entropy (hard labels, or soft labels from timm's Mixup/CutMix and label smoothing) and AdamW under a
cosine schedule with linear warmup, as in timm and DeiT (arXiv 2012.12877); reports top-1 and top-5 accuracy.

A label map restricts a head to some of its classes: `imagenet1k_index.json` of tiny_imagenet scores 200 classes with a
1000-way head. The network stays unchanged: its weights and plans are those of the full model. Does not cover detection,
segmentation or multi-label targets.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy

from prunerecover.recipes.networks.model_names import expand, timm_name
from prunerecover.recipes.tasks.evaluated_module import Batch, VisionModule


def read_label_map(source: str | Sequence[int]) -> Tensor:
    """Return the head's class index of each label of the data, `(classes,)`.

    Args:
        source: List of indices, or the path of a JSON file with a list of indices or a mapping with a single list.

    Raises:
        ValueError: If the file does not exist, or holds no list of different non-negative integers.
    """
    indices: Any = source
    if isinstance(source, str):
        path = Path(expand(source))
        if not path.is_file():
            raise ValueError(f"Expected a JSON file with class indices at {path}, but there is none. Check label_map.")
        indices = json.loads(path.read_text())
        if isinstance(indices, dict) and len(indices) == 1:
            indices = next(iter(indices.values()))
    valid = isinstance(indices, Sequence) and all(isinstance(i, int) and i >= 0 for i in indices)
    if not valid or not indices or len(set(indices)) != len(indices):
        raise ValueError(
            "Expected label_map to be a list of different class indices, or a JSON file with one, such as "
            f'{{"imagenet1k_index": [1, 25]}}, but got {str(indices)[:80]}. Entry i is the head\'s index of label i.'
        )
    return torch.tensor(indices, dtype=torch.long)


class ImageClassifier(VisionModule):
    """Train and evaluate a timm model; the network is `self.model`.

    Args:
        model: Name of a timm model, `local-dir:/path`, a hub id, or a name of `cifar_resnet`.
        pretrained: Whether to load the pretrained weights of the name.
        num_classes: Size of the head; None keeps the model's.
        model_kwargs: Further arguments of `timm.create_model`, for example `{"drop_path_rate": 0.1}`, or
            `{"checkpoint_path": "$HOME/weights.safetensors"}` for weights of your own.
        label_map: Class index of the head for each label of the data: a list, or a JSON file (see `read_label_map`).
        learning_rate: Peak learning rate of AdamW.
        weight_decay: Weight decay of parameters with two or more dimensions.
        warmup_epochs: Length of the linear warmup, in epochs; may be a fraction.
        min_learning_rate: Learning rate at the end of the cosine.
        label_smoothing: Label smoothing of the training targets.
        mixup: Alpha of Mixup; 0 turns Mixup off.
        cutmix: Alpha of CutMix; 0 turns CutMix off.
        layer_decay: Ratio of each layer's learning rate to the rate of the next layer, as in fine-tuning BEiT (0.65 to
            0.75); None: equal rates.
    """

    def __init__(
        self,
        model: str = "deit_tiny_patch16_224",
        pretrained: bool = False,
        num_classes: int | None = None,
        model_kwargs: dict[str, Any] | None = None,
        label_map: str | list[int] | None = None,
        learning_rate: float = 5e-4,
        weight_decay: float = 0.05,
        warmup_epochs: float = 0.0,
        min_learning_rate: float = 1e-6,
        label_smoothing: float = 0.0,
        mixup: float = 0.0,
        cutmix: float = 0.0,
        layer_decay: float | None = None,
    ) -> None:
        super().__init__(learning_rate, weight_decay, warmup_epochs, min_learning_rate, layer_decay)
        self.save_hyperparameters()
        self.model = _create(model, pretrained, num_classes, model_kwargs or {})
        self.label_smoothing = label_smoothing
        self.label_index: Tensor | None
        self.register_buffer("label_index", read_label_map(label_map) if label_map else None, persistent=False)
        self.classes = classes = _check_classes(self.model, self.label_index)
        self.mix = _mixing(mixup, cutmix, label_smoothing, classes)
        metrics = MetricCollection(
            {f"top{k}": MulticlassAccuracy(classes, top_k=min(k, classes), average="micro") for k in (1, 5)}
        )
        self.val_metrics = metrics.clone(prefix="val_")
        self.test_metrics = metrics.clone(prefix="test_")

    def loss_of(self, scores: Tensor, target: Tensor) -> Tensor:
        """Return the cross-entropy with hard labels."""
        return F.cross_entropy(scores, target)

    def heads(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return the logits of every head, each `(N, classes)`: distilled DeiT has two during distillation."""
        output = self.model(images)
        outputs = output if isinstance(output, tuple) else (output,)
        return outputs if self.label_index is None else tuple(o[:, self.label_index] for o in outputs)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits `(N, classes)` over the data's labels."""
        return torch.stack(self.heads(images)).mean(0)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the loss, averaged over the heads."""
        images, target = batch
        self._check_labels(target)
        smoothing = self.label_smoothing
        if self.mix is not None and self.training and len(images) % 2 == 0:  # timm mixes pairs
            images, target = self.mix(images, target)
            smoothing = 0.0  # already in the mixed targets
        losses = [F.cross_entropy(o, target, label_smoothing=smoothing) for o in self.heads(images)]
        loss = torch.stack(losses).mean()
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def update_metrics(self, metrics: MetricCollection, scores: Tensor, target: Tensor) -> None:
        """Add scored images to the metrics."""
        self._check_labels(target)
        metrics.update(scores, target)

    def _check_labels(self, target: Tensor) -> None:
        """Raise ValueError for labels of unscored classes: a GPU would fail without a message, for good."""
        wrong = target[(target < 0) | (target >= self.classes)]
        if wrong.numel():
            raise ValueError(
                f"Expected labels from 0 to {self.classes - 1}, as {self.classes} classes are scored, but got "
                f"{int(wrong[0])}. Set num_classes to as many as the data have, or check label_map."
            )

    def predict_step(self, batch: Batch | Tensor, batch_idx: int) -> Tensor:
        """Return the probabilities `(N, classes)`."""
        images = batch if isinstance(batch, Tensor) else batch[0]
        return self(images).softmax(-1)  # type: ignore[no-any-return]


def _create(name: str, pretrained: bool, num_classes: int | None, kwargs: dict[str, Any]) -> nn.Module:
    import timm

    if num_classes is not None:
        kwargs = {"num_classes": num_classes, **kwargs}
    if kwargs.get("checkpoint_path"):
        kwargs = {**kwargs, "checkpoint_path": expand(kwargs["checkpoint_path"])}
    model: nn.Module = timm.create_model(timm_name(name), pretrained=pretrained, **kwargs)
    return model


def _check_classes(model: nn.Module, label_index: Tensor | None) -> int:
    """Return the number of scored classes."""
    outputs = int(model.num_classes)  # type: ignore[arg-type]
    if label_index is None:
        return outputs
    if int(label_index.max()) >= outputs:
        raise ValueError(
            f"Expected label_map to index a head of {outputs} classes (0-{outputs - 1}), but it names class "
            f"{int(label_index.max())}. Was it made for another head?"
        )
    return len(label_index)


def _mixing(mixup: float, cutmix: float, smoothing: float, classes: int) -> Any:
    if not mixup and not cutmix:
        return None
    from timm.data import Mixup

    return Mixup(mixup_alpha=mixup, cutmix_alpha=cutmix, label_smoothing=smoothing, num_classes=classes)
