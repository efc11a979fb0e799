"""Network with BatchNorm statistics that match its weights, and a network with stale statistics."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torchvision.ops import Conv2dNormActivation

from prunerecover import recalibrate_batchnorm


def right() -> nn.Module:
    """Return a network with matching statistics and confident predictions."""
    torch.manual_seed(0)
    network = nn.Sequential(
        *Conv2dNormActivation(3, 8, 3, padding=0),
        *Conv2dNormActivation(8, 6, 3, padding=0),
        *Conv2dNormActivation(6, 6, 3),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(6, 4),
    )
    nn.init.normal_(network[-1].weight, std=100)
    recalibrate_batchnorm(network, [torch.randn(512, 3, 6, 6)])
    return network.eval()


def stale() -> nn.Module:
    """Return the network with the same weights and other statistics."""
    network = right()
    for norm in (network[1], network[4], network[7]):
        norm.running_mean += torch.linspace(-1, 1, len(norm.running_mean))
        norm.running_var *= 3
    return network


def told() -> tuple[Tensor, Tensor]:
    """Return 64 samples, and the network's classes for them."""
    images = torch.randn(64, 3, 6, 6, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return images, right()(images).argmax(1)


def anew(network: nn.Module, batches: list[Tensor] | list[tuple[Tensor, Tensor]]) -> nn.Module:
    """A copy with statistics estimated on batches."""
    copied = copy.deepcopy(network)
    recalibrate_batchnorm(copied, batches)
    return copied


def same(one: nn.Module, other: nn.Module) -> bool:
    """Whether two networks have the same tensors."""
    return all(torch.equal(value, other.state_dict()[name]) for name, value in one.state_dict().items())
