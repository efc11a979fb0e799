"""Networks and batches of the tests of `plan_width`."""

from __future__ import annotations

import timm
import torch
from torch import Tensor, nn

from prunerecover import Plan
from prunerecover.cost.macs import count_macs
from prunerecover.recipes.networks.cifar_resnet import CifarResNet

Batches = list[tuple[Tensor, Tensor]]
IMAGE = torch.zeros(1, 3, 16, 16)


def cnn(seed: int = 0) -> nn.Module:
    """A ResNet-8 with padded shortcuts, its BatchNorm statistics in use."""
    torch.manual_seed(seed)
    model = CifarResNet(blocks=1, num_classes=4)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, 0.0, 0.3)
    with torch.no_grad():
        model.train()(torch.randn(64, 3, 16, 16))
    return model.eval()


def vit(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return timm.create_model(
        "vit_tiny_patch16_224", img_size=16, patch_size=4, embed_dim=48, depth=2, num_heads=4, num_classes=4
    ).eval()


def labelled_batches() -> Batches:
    """Two of 16 images, 4 classes."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(32) % 4
    images = torch.randn(32, 3, 16, 16, generator=generator) + labels.view(-1, 1, 1, 1) / 2
    return list(zip(images.split(16), labels.split(16), strict=True))


def removed_share(model: nn.Module, plan: Plan, cost: str) -> float:
    if cost == "macs":
        return 1 - plan.result.macs / count_macs(model, IMAGE)
    return 1 - plan.result.params / sum(p.numel() for p in model.parameters())
