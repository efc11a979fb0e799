"""CIFAR-10 for the width benchmarks: images in memory, scores and an epoch of training.

The 10,000 test images serve for scores alone. Calibration and training images are drawn from the training split with
the run's seed. JPEGs score about 10 points below lossless images with the ResNets' weights, which were trained without
compression.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler

from benchmarks.data.real import autocast, data_root
from benchmarks.runner.fits import train
from prunerecover.recipes.networks.cifar_resnet import CONFIG

EXAMPLE = torch.zeros(1, 3, 32, 32)
BATCH, LEARNING_RATE = 128, 0.01
Schedule = Callable[[Optimizer, int], LRScheduler]


def images(split: str, rows: NDArray[np.int64] | None = None, source: str = "cifar10") -> tuple[Tensor, Tensor]:
    """Return normalised images `(N, 3, 32, 32)` and labels `(N,)`."""
    table = _table(source, split)
    chosen = table if rows is None else table.take(rows)
    decoded = [np.array(Image.open(io.BytesIO(row["bytes"])).convert("RGB")) for row in chosen["img"].to_pylist()]
    mean, std = (torch.tensor(CONFIG[name]).view(3, 1, 1) for name in ("mean", "std"))
    pixels = torch.from_numpy(np.stack(decoded)).permute(0, 3, 1, 2) / 255
    return (pixels - mean) / std, torch.tensor(chosen["label"].to_pylist())


@cache
def scored_images(source: str) -> tuple[Tensor, Tensor]:
    """Return the test split."""
    return images("test", source=source)


@cache
def training_images(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return `n` training images, the first of a permutation drawn with `seed`."""
    order = np.random.default_rng(seed).permutation(_table("cifar10", "train").num_rows)
    return images("train", order[:n])


def batches(n: int, seed: int, size: int = BATCH) -> list[tuple[Tensor, Tensor]]:
    """Return `n` training images with labels, in batches."""
    return list(zip(*(tensor.split(size) for tensor in training_images(n, seed)), strict=True))


def hits(network: nn.Module, source: str = "cifar10", n: int | None = None) -> NDArray[np.float64]:
    """Return hits of the network, by image over all test images or the first `n`; in bf16 where the CPU supports it."""
    return right(network, *(tensor[:n] for tensor in scored_images(source)))


def right(network: nn.Module, pixels: Tensor, labels: Tensor) -> NDArray[np.float64]:
    """Return whether the network is right, per image `(N, 3, 32, 32)`."""
    network = copy.deepcopy(network).eval().to(memory_format=torch.channels_last)  # half as fast otherwise
    with torch.inference_mode(), autocast():
        predicted = torch.cat([network(batch).argmax(1) for batch in pixels.split(100)])
    return predicted.eq(labels).double().numpy()


def train_one_epoch(
    network: nn.Module, n: int, seed: int, rate: float = LEARNING_RATE, schedule: Schedule = CosineAnnealingLR
) -> nn.Module:
    """Train on `n` images: SGD with momentum, random crops and flips; the same for all.

    Args:
        network: Trained in place, and left in evaluation mode.
        n: Number of images, each seen once.
        seed: Seed of the images, their order and the augmentation.
        rate: The highest learning rate.
        schedule: Maker of a scheduler from an optimizer and a number of steps.
    """
    pixels, labels = training_images(n, seed)
    generator = torch.Generator().manual_seed(seed)
    parameters = [p for p in network.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(parameters, rate, momentum=0.9, weight_decay=5e-4, nesterov=True)
    order = torch.randperm(n, generator=generator).split(BATCH)
    given = ((augmented(pixels[chosen], generator), labels[chosen]) for chosen in order)
    network = network.to(memory_format=torch.channels_last)
    train(network, given, cross_entropy, optimizer, schedule(optimizer, len(order)))
    return network.to(memory_format=torch.contiguous_format)


def augmented(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Crop each image at random after padding by 4 pixels, and flip about half of them."""
    return cropped(F.pad(pixels, (4, 4, 4, 4)), 32, generator)


def cropped(pixels: Tensor, side: int, generator: torch.Generator) -> Tensor:
    """Crop each image `(N, 3, H, W)` at random to a square, and flip about half of them."""
    tops, lefts = torch.randint(pixels.shape[-1] - side + 1, (2, len(pixels)), generator=generator).tolist()
    flips = torch.rand(len(pixels), generator=generator) < 0.5
    crops = [image[:, y : y + side, x : x + side] for image, y, x in zip(pixels, tops, lefts, strict=True)]
    stacked = torch.stack(crops)
    return torch.where(flips.view(-1, 1, 1, 1), stacked.flip(3), stacked)


def cross_entropy(network: nn.Module, batch: Any) -> Tensor:
    """Return the loss of a labelled batch."""
    return F.cross_entropy(network(batch[0]), batch[1])


@cache
def _table(source: str, split: str) -> Any:
    return pq.read_table(data_root() / "data" / source / f"{split}.parquet")
