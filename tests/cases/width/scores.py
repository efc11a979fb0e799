"""A small perceptron and oracles of the width scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from cases.models.hand_made_groups import CLASSES, reads
from scipy.stats import wasserstein_distance
from torch import Tensor, nn

from prunerecover.importance.context import WidthContext
from prunerecover.importance.measuring.losses import Loss
from prunerecover.importance.measuring.unit_slices import Scores
from prunerecover.importance.registry import compute_importances
from prunerecover.plan.groups import Group, Slice, Tap
from prunerecover.width.allocation.tolerance import depth_of, tolerance_of_difference

Batch = tuple[Tensor, Tensor]


def same(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], rel: float = 1e-5) -> bool:
    assert list(found) == list(expected)
    return all(torch.allclose(found[n], expected[n], rtol=rel, atol=1e-12) for n in found)


def context(
    model: nn.Module, groups: Sequence[Group], batches: Sequence[Any] = (), loss: Loss | None = None, **options: Any
) -> WidthContext:
    return WidthContext(model=model, groups=groups, batches=batches, loss=loss, **options)


def computed(scored: WidthContext, names: Sequence[str]) -> dict[str, Scores]:
    """Compute scores together, by name."""
    return dict(zip(names, compute_importances(scored, names), strict=True))


def removable(removal: Tensor, protection: Tensor, tolerance: float) -> int:
    """Return the depth of a single group at a tolerance."""
    return depth_of(tolerance_of_difference(removal, protection), tolerance)


def largest_distance(values: Tensor, labels: Tensor) -> float:
    """The largest over pairs of classes of the mean over directions, `(N, D)`, by scipy."""
    classes = labels.unique().tolist()
    pairs = [(a, b) for i, a in enumerate(classes) for b in classes[i + 1 :]]
    return max(
        float(np.mean([wasserstein_distance(v[labels == a], v[labels == b]) for v in values.T])) for a, b in pairs
    )


def directions_of(entries: int, number: int, seed: int) -> Tensor:
    drawn = torch.randn(number, entries, generator=torch.Generator().manual_seed(seed))
    return drawn / drawn.norm(dim=1, keepdim=True)


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 5), nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).relu())


def perceptron() -> tuple[nn.Module, tuple[Group, ...], list[Batch]]:
    torch.manual_seed(0)
    slices = (Slice(tensor="first.weight", dim=0), Slice(tensor="first.bias", dim=0), *reads("second"))
    group = Group("first", "neuron", 5, slices, (Tap("first", dim=-1),))
    labels = torch.tensor([0, 1, 1, 2, 2, 2, 3, 3, 3, 3, 0, 2, 1])
    inputs = torch.randn(13, 6, dtype=torch.float64) + labels[:, None]
    return Perceptron().double(), (group,), list(zip(inputs.split(5), labels.split(5), strict=True))
