"""Networks of the width benchmarks: real ResNets of CIFAR-10, and a small ConvNeXt that is trained here.

    PRUNERECOVER_DATA=... python -m benchmarks.width.cifar_models

trains the ConvNeXt, 12 epochs of all 50,000 images in about 15 minutes on a core, unless its weights are there.
"""

from __future__ import annotations

import timm
import torch
from rich.progress import track
from safetensors.torch import load_model, save_model
from torch import nn
from torch.nn import functional as F

from benchmarks.data.cifar import BATCH, augmented, hits, training_images
from benchmarks.data.real import CHECKPOINTS, data_root, parser

MODELS = ("ResNet-20", "ResNet-56", "ConvNeXt")
CONVNEXT = CHECKPOINTS / "convnext_cifar10.safetensors"
IMAGES, EPOCHS, LEARNING_RATE = 50_000, 12, 2e-3


def load(model: str) -> nn.Module:
    """Load one of the networks, in evaluation mode."""
    if model == "ConvNeXt":
        network = convnext()
        load_model(network, CONVNEXT)
        return network.eval()
    depth = model.removeprefix("ResNet-")
    weights = data_root() / "models" / f"resnet{depth}_cifar10" / "model.safetensors"
    resnet: nn.Module = timm.create_model(f"cifar_resnet{depth}", checkpoint_path=str(weights))
    return resnet.eval()


def convnext() -> nn.Module:
    """Return an untrained ConvNeXt of 10 blocks, 3.7M MACs."""
    shape = {"depths": (2, 2, 4, 2), "dims": (24, 48, 96, 192), "patch_size": 2}
    network: nn.Module = timm.create_model("convnext_atto", num_classes=10, drop_path_rate=0.1, **shape)
    return network


def train() -> nn.Module:
    """Train the ConvNeXt: AdamW under one cycle of the learning rate, random crops and flips."""
    torch.manual_seed(0)
    pixels, labels = training_images(IMAGES, 0)
    generator = torch.Generator().manual_seed(0)
    network = convnext().to(memory_format=torch.channels_last).train()
    optimizer = torch.optim.AdamW(network.parameters(), LEARNING_RATE, weight_decay=0.05)
    order = [part for _ in range(EPOCHS) for part in torch.randperm(IMAGES, generator=generator).split(BATCH)]
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=len(order), pct_start=0.15)
    for chosen in track(order, "training the ConvNeXt"):
        optimizer.zero_grad()
        F.cross_entropy(network(augmented(pixels[chosen], generator)), labels[chosen]).backward()
        optimizer.step()
        scheduler.step()
    return network.eval()


def main() -> None:
    """Train the ConvNeXt unless its weights are there, and score it."""
    parser(__doc__).parse_args()
    if not CONVNEXT.is_file():
        CONVNEXT.parent.mkdir(exist_ok=True)
        save_model(train().to(memory_format=torch.contiguous_format), str(CONVNEXT))
    print(f"{100 * hits(load('ConvNeXt')).mean():.2f} on the test images")


if __name__ == "__main__":
    main()
