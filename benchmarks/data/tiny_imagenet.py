"""DeiT-Tiny on the 200 classes of tiny_imagenet: shared data, recovery and scores.

Units and splits are chosen on training images alone. All 5,000 validation images are kept for the result. Recovery and
scores of every method run in bf16 where the processor supports it, then with unfused attention: on such CPUs, this
takes half the time.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from benchmarks.data.real import BF16, DEVICE, autocast, data_root, deit_tiny, deit_tiny_name
from benchmarks.runner.fits import fit
from prunerecover.callbacks import DistillRecover
from prunerecover.recipes.data.image_data import ImageData
from prunerecover.recipes.tasks.image_classifier import ImageClassifier, read_label_map

PRECISION = {"precision": "bf16-mixed" if BF16 else "32-true"}


def module(network: nn.Module) -> ImageClassifier:
    """Return the recipe's LightningModule around a network."""
    made = ImageClassifier(
        deit_tiny_name(),
        pretrained=True,
        label_map=str(data_root() / "data" / "tiny_imagenet" / "imagenet1k_index.json"),
        learning_rate=1e-4,
        warmup_epochs=0.1,
    )
    made.model = network
    return made


def data(limit_train: int, limit_held_out: int = 1, **options: Any) -> ImageData:
    """Return augmented training images, with held-out images of the training split for validation.

    A fixed quarter of the training split is set aside, and is never used for training or calibration.

    Args:
        limit_train: Number of training images, out of 15,000.
        limit_held_out: Number of validation images, out of 5,000.
        options: Options of `ImageData`.
    """
    augmentation = {"scale": [0.5, 1.0], "color_jitter": 0.0}
    settings = {"augment_kwargs": augmentation, "batch_size": 16, "num_workers": 1, "val_fraction": 0.25, "seed": 0}
    return image_data(limit_train=limit_train, limit_val=limit_held_out, **{**settings, **options})


def image_data(**options: Any) -> ImageData:
    """Return the images with DeiT-Tiny's transforms, without augmentation."""
    return ImageData(str(data_root() / "data" / "tiny_imagenet"), model=deit_tiny_name(), **options)


@cache
def calibration(samples: int = 192) -> tuple[tuple[torch.Tensor, torch.Tensor], ...]:
    """Return labelled training images without augmentation, in batches of 32 and always in the same order."""
    source = data(samples, augment=False, augment_kwargs={}, batch_size=32, num_workers=0)
    source.setup("fit")
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        return tuple((images, labels) for images, labels in source.train_dataloader())


def training_images(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return training images without augmentation, `(n, 3, 224, 224)`, and labels."""
    images, labels = zip(*calibration(n + 32), strict=True)  # the last batch is left out
    return torch.cat(images)[:n], torch.cat(labels)[:n]


def loss(network: nn.Module, batch: Any) -> torch.Tensor:
    """Return the cross-entropy over the 200 classes."""
    images, labels = batch
    return nn.functional.cross_entropy(network(images)[:, classes()], labels)


@cache
def classes() -> torch.Tensor:
    """Return the head's index of each of the 200 classes."""
    return read_label_map(str(data_root() / "data" / "tiny_imagenet" / "imagenet1k_index.json"))


def recover(network: nn.Module, images: int, seed: int) -> nn.Module:
    """Train a pruned network for an epoch with distillation from the dense one, as for every method; return it.

    Args:
        network: Trained in place.
        images: Number of training images.
        seed: Seed of the order and augmentation.
    """
    pl.seed_everything(seed, verbose=False)
    made, source = module(unfused(network)), data(images)
    source.setup("fit")
    teacher = DistillRecover(teacher=unfused(deit_tiny()))
    fit(made, source.train_dataloader(), [teacher], max_epochs=1, accelerator="auto", **PRECISION)
    return made.model.eval()


def hits(network: nn.Module, batches: Iterable[Any] | None = None) -> NDArray[np.float64]:
    """Return per image whether the network is right, `(n,)`; None: all 5,000 validation images."""
    with autocast():
        return correct(unfused(network), validation() if batches is None else batches)


def correct(network: nn.Module, batches: Iterable[Any]) -> NDArray[np.float64]:
    """Return per image whether the network is right among the 200 classes, `(n,)`, in its own precision."""
    found, network = [], network.to(DEVICE).eval()
    with torch.inference_mode():
        for images, labels in batches:
            found.append(network(images.to(DEVICE)).cpu()[:, classes()].argmax(1) == labels)
    return torch.cat(found).double().numpy()


@cache
def validation(limit: int | None = None) -> tuple[tuple[torch.Tensor, torch.Tensor], ...]:
    """Return the validation images in batches of 50, in the dtype of autocast; None: all 5,000."""
    source = image_data(batch_size=50, num_workers=1, limit_val=limit)
    source.setup("validate")
    dtype = torch.bfloat16 if BF16 else torch.float32
    return tuple((images.to(dtype), labels) for images, labels in source.val_dataloader())


def unfused(network: nn.Module) -> nn.Module:
    """Unfuse attentions on processors with bf16, where the change is faster."""
    for layer in network.modules():
        if BF16 and DEVICE.type == "cpu" and hasattr(layer, "fused_attn"):
            layer.fused_attn = False
    return network
