"""Networks and batches of the tests of `plan_width`."""

from __future__ import annotations

from typing import Any

import torch
from cases.models.tiny import plain_vit
from torch import Tensor, nn

from prunerecover import Budget, Plan
from prunerecover.calibration.samples import CalibrationSet, split_batches
from prunerecover.cost.macs import count_macs
from prunerecover.plan.edits import Edit
from prunerecover.recipes.networks.cifar_resnet import CifarResNet
from prunerecover.session.session import Session
from prunerecover.width.allocator import WidthAllocator
from prunerecover.width.arguments import WidthRule

Batches = list[tuple[Tensor, Tensor]]
IMAGE = torch.zeros(1, 3, 16, 16)
IMAGES = torch.randn(64, 3, 16, 16, generator=torch.Generator().manual_seed(3))
CPU = torch.device("cpu")


def cnn(seed: int = 0) -> nn.Module:
    """Return a ResNet-8 with padded shortcuts and BatchNorm statistics of data."""
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
    return plain_vit(embed_dim=48, depth=2).eval()


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


class Joined(nn.Module):
    """Two groups concatenated for their readers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Conv2d(3, 6, 3), nn.Conv2d(3, 8, 3), nn.Conv2d(14, 9, 3, bias=False)
        self.head = nn.Linear(9 * 144, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Read both groups in a convolution, and its flattened map in a linear layer."""
        together = torch.cat([self.first(x).relu(), self.second(x).relu()], 1)
        return self.head(self.last(together).relu().flatten(1))


MODELS: dict[str, Any] = {"concatenated, flattened": Joined, "padded shortcuts": cnn, "heads": vit}


def spread(model: nn.Module) -> nn.Module:
    """Enlarge an untrained network's head, so that outputs differ between samples."""
    *_, head = (module for module in model.modules() if isinstance(module, nn.Linear))
    with torch.no_grad():
        head.weight.mul_(30)
    return model


def narrowed(make: Any, share: float = 0.3) -> tuple[nn.Module, tuple[Edit, ...], dict[str, Tensor], CalibrationSet]:
    """Return a model, the edits of a plan in width, the fitted tensors, and the fitting samples."""
    torch.manual_seed(0)
    model = spread(make().eval())
    planner = WidthAllocator(Session(model, [(images, torch.arange(8) % 4) for images in IMAGES.split(8)]))
    plan = planner.decided(Budget(params=share), WidthRule(allocation="uniform", importance="gate_taylor"))
    return model, plan.edits, dict(plan.tensors), split_batches(list(IMAGES.split(8)), CPU)
