"""Training for `long_recovery.py`: a small ViT, the images, and the same recovery for all methods.

The ViT has 12 blocks of DeiT's shape (class token, mlp_ratio 4) at a width of 64, and three convolutions instead of
patches (arXiv 2106.14881), so that it learns from 10,000 images. Inputs are crops of 24 x 24 as 9 tokens, random in
training and central otherwise, to fit into one thread's time. Training and held-out images come from CIFAR-10's
training split; test images serve for scores alone.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import islice
from typing import Any

import torch
from timm.models.vision_transformer import Attention, VisionTransformer
from torch import Tensor, nn

from benchmarks.data.cifar import batches, cropped, cross_entropy, training_images
from benchmarks.runner import fits
from benchmarks.runner.plans import kept
from benchmarks.runner.rows import CHECKPOINTS, RESULTS
from prunerecover import Plan, apply_plan
from prunerecover.boundary.search import Trial

TRAINED, HELD_OUT, CALIBRATION = 10_000, 2_000, 192  # numbers of images; 192 is DepthPrune's default
EPOCHS, TENTH, SHORT = 10, 1, 0.5  # epochs of training and the whole recovery, of a tenth, and of a map's run
BATCH, RATE, DECAY, WARM_UP = 128, 2e-3, 0.05, 0.05
WIDTH, STEM, SIDE = 64, (16, 32), 24
DATA_SEED = 0
WEIGHTS = CHECKPOINTS / "long_recovery"
TRIALS = RESULTS / "long_recovery.trials.jsonl"
EXAMPLE = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))


class ConvStem(nn.Sequential):
    """Three convolutions of stride 2 over the middle of images `(N, 3, H, W)`: tokens `(N, 9, C)`."""

    num_patches = 9

    def __init__(self, embed_dim: int, **_: Any) -> None:
        widths = (3, *STEM, embed_dim)
        parts: list[nn.Module] = []
        for width, following in zip(widths, widths[1:], strict=False):
            parts += [nn.Conv2d(width, following, 3, stride=2, padding=1), nn.BatchNorm2d(following), nn.GELU()]
        super().__init__(*parts[:-2])  # without norm and activation after the last

    def forward(self, x: Tensor) -> Tensor:
        """Return tokens."""
        top, left = ((side - SIDE) // 2 for side in x.shape[2:])
        x = x[:, :, top : top + SIDE, left : left + SIDE]
        for part in self:
            x = part(x)
        return x.flatten(2).transpose(1, 2)


def small_vit() -> nn.Module:
    """Return the ViT with random weights."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"embed_dim": WIDTH, "depth": 12, "num_heads": 2, "num_classes": 10}
    made: nn.Module = VisionTransformer(SIDE, 8, embed_layer=ConvStem, **sizes)
    for part in made.modules():
        if isinstance(part, Attention):
            part.fused_attn = False  # slower with so few tokens
    return made


@cache
def _pixels() -> tuple[Tensor, Tensor]:
    return training_images(TRAINED + HELD_OUT, DATA_SEED)


def calibration() -> list[tuple[Tensor, Tensor]]:
    """Return training images with labels, in batches."""
    return batches(CALIBRATION, DATA_SEED, 64)


def held_out(network: nn.Module) -> float:
    """Return the accuracy on held-out images of the training split, in percent."""
    pixels, labels = (tensor[TRAINED:] for tensor in _pixels())
    was, network = network.training, network.eval()
    with torch.inference_mode():
        predicted = torch.cat([network(batch).argmax(1) for batch in pixels.split(100)])
    network.train(was)
    return 100 * float(predicted.eq(labels).double().mean())


def train(network: nn.Module, epochs: float, rate: float, seed: int) -> list[tuple[float, float]]:
    """Train: AdamW, warm-up and cosine to 0, random crops and flips; the same for the dense network and for recoveries.

    Args:
        network: Trained in place, and left in eval mode.
        epochs: Passes over all training images.
        rate: At the end of the warm-up.
        seed: Seed of the order and the augmentation.

    Returns:
        Accuracy on held-out images after some tenths of the epochs, at whatever rate there then is.
    """
    pixels, labels = (tensor[:TRAINED] for tensor in _pixels())
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    steps = round(epochs * math.ceil(TRAINED / BATCH))
    optimizer = torch.optim.AdamW(network.parameters(), rate, weight_decay=DECAY, fused=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule(steps))
    marks = {round(steps * tenth / 10) for tenth in (1, 2, 4, 6, 8, 10)} if epochs >= EPOCHS else set()
    curve = []

    def drawn() -> Iterator[tuple[Tensor, Tensor]]:
        for step, chosen in enumerate(islice(_order(generator), steps), 1):
            yield cropped(pixels[chosen], SIDE, generator), labels[chosen]
            if step in marks:  # the network has made the step
                curve.append((round(step * BATCH / TRAINED, 1), held_out(network)))

    fits.train(network, drawn(), cross_entropy, optimizer, scheduler, clip=1.0)
    return curve


def _order(generator: torch.Generator) -> Iterator[Tensor]:
    """Give indices of batches, all images in a new order each epoch."""
    while True:
        yield from torch.randperm(TRAINED, generator=generator).split(BATCH)


def schedule(steps: int) -> Callable[[int], float]:
    """Return the factor of the rate at each step: a linear warm-up, then half a cosine to 0."""
    warm = max(1, round(WARM_UP * steps))

    def factor(step: int) -> float:
        if step < warm:
            return (step + 1) / warm
        return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))

    return factor


def _weights() -> dict[str, Tensor]:
    network = small_vit()
    train(network, EPOCHS, RATE, seed=0)
    return network.state_dict()


@cache
def _dense() -> nn.Module:
    network = small_vit()
    network.load_state_dict(kept(WEIGHTS / "dense.pt", _weights))
    return network.eval()


def dense() -> nn.Module:
    """Return a copy of the trained ViT; the first call trains it, for as long as a recovery."""
    return copy.deepcopy(_dense())


def pruned(plan: Plan) -> nn.Module:
    """Apply a plan to the trained ViT, without merging."""
    network = dense()
    apply_plan(network, plan)
    return network


def short_runs(trials: Sequence[Trial]) -> list[float]:
    """Return the held-out accuracies of a map's trials after short recoveries, from the records if possible."""
    return [_recovered(trial.plan, trial.seed) for trial in trials]


def _recovered(plan: Plan, seed: int) -> float:
    told = json.dumps([edit.model_dump(mode="json") for edit in plan.edits], sort_keys=True)
    key = hashlib.sha256(told.encode()).hexdigest()[:16]
    asked = {"plan": key, "seed": seed, "epochs": SHORT, "rate": RATE}
    lines = TRIALS.read_text().splitlines() if TRIALS.is_file() else []
    for record in map(json.loads, lines):
        if asked.items() <= record.items():
            return float(record["accuracy"])
    network = pruned(plan)
    train(network, SHORT, RATE, seed)
    removed = {kind: len(names) for kind, names in plan.removed.items()}
    record = {**asked, "removed": removed, "accuracy": held_out(network)}
    with TRIALS.open("a") as file:
        file.write(json.dumps(record) + "\n")
    return float(record["accuracy"])
