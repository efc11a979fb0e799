"""Networks of CIFAR-10 for the benchmarks: real ResNets, and a ConvNeXt and a MobileNetV2 trained here.

    PRUNERECOVER_DATA=... python -m benchmarks.width.cifar_models --models ConvNeXt MobileNetV2

trains networks without weights: a few epochs of all 50,000 images, in up to 10 minutes each on a core.
"""

from __future__ import annotations

from pathlib import Path

import timm
import torch
from rich.progress import track
from safetensors.torch import load_model, save_model
from torch import nn
from torchvision.models import MobileNetV2

from benchmarks.data.cifar import BATCH, augmented, cross_entropy, hits, training_images
from benchmarks.data.real import data_root
from benchmarks.runner import fits
from benchmarks.runner.benchmark import command_line
from benchmarks.runner.rows import CHECKPOINTS

MODELS = ("ResNet-20", "ResNet-56", "ConvNeXt")
IMAGES, LEARNING_RATE = 50_000, 2e-3
EPOCHS = {"ConvNeXt": 12, "MobileNetV2": 3}  # epochs of the networks trained here


def load(model: str) -> nn.Module:
    """Load a network by name, in evaluation mode."""
    if model in EPOCHS:
        network = untrained(model)
        load_model(network, _weights(model))
        return network.eval()
    depth = model.removeprefix("ResNet-")
    weights = data_root() / "models" / f"resnet{depth}_cifar10" / "model.safetensors"
    resnet: nn.Module = timm.create_model(f"cifar_resnet{depth}", checkpoint_path=str(weights))
    return resnet.eval()


def untrained(model: str) -> nn.Module:
    """Return a ConvNeXt of 10 blocks (3.7M MACs) or a MobileNetV2 of 11 (16M), not trained."""
    network: nn.Module
    if model == "ConvNeXt":
        shape = {"depths": (2, 2, 4, 2), "dims": (24, 48, 96, 192), "patch_size": 2}
        network = timm.create_model("convnext_atto", num_classes=10, drop_path_rate=0.1, **shape)
    else:
        stages = [[1, 16, 1, 1], [4, 24, 3, 2], [4, 48, 4, 2], [4, 96, 3, 2]]
        network = MobileNetV2(num_classes=10, inverted_residual_setting=stages)
        network.get_submodule("features.0.0").stride = (1, 1)  # images are small
    return network


def train(model: str) -> nn.Module:
    """Train a network: AdamW under a one-cycle learning rate, random crops and flips."""
    torch.manual_seed(0)
    pixels, labels = training_images(IMAGES, 0)
    generator = torch.Generator().manual_seed(0)
    network = untrained(model).to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(network.parameters(), LEARNING_RATE, weight_decay=0.05)
    steps = [part for _ in range(EPOCHS[model]) for part in torch.randperm(IMAGES, generator=generator).split(BATCH)]
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=len(steps), pct_start=0.15)
    chosen = track(steps, f"training the {model}")
    given = ((augmented(pixels[some], generator), labels[some]) for some in chosen)
    return fits.train(network, given, cross_entropy, optimizer, scheduler).to(memory_format=torch.contiguous_format)


def main() -> None:
    """Train networks without weights, and score them."""
    arguments = command_line(__doc__)
    arguments.add_argument("--models", nargs="+", choices=EPOCHS, default=["ConvNeXt"])
    for model in arguments.parse_args().models:
        if not _weights(model).is_file():
            CHECKPOINTS.mkdir(exist_ok=True)
            save_model(train(model), str(_weights(model)))
        print(f"{model}: {100 * hits(load(model)).mean():.2f} on the test images")


def _weights(model: str) -> Path:
    return CHECKPOINTS / f"{model.lower()}_cifar10.safetensors"


if __name__ == "__main__":
    main()
