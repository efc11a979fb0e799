"""Distillation compares the outputs of tasks as tasks."""

from __future__ import annotations

import torch
from torch import Tensor

from prunerecover.divergence.registry import output_divergence
from prunerecover.recovery.distillation import distillation_loss


def detection_map() -> Tensor:
    """Return objects, boxes and 5 classes of 2 images at 4 x 4 places."""
    made = torch.randn(2, 10, 4, 4, generator=torch.Generator().manual_seed(0))
    return torch.cat([made[:, :1].sigmoid(), 3 * made[:, 1:5], made[:, 5:].softmax(1)], 1)


def test_detection_maps_are_compared_by_objects_boxes_and_classes() -> None:
    teacher, moved = detection_map(), detection_map()
    moved[:, 2] += 0.1
    moved.requires_grad_()
    loss = distillation_loss(moved, teacher)
    assert loss.item() == output_divergence(teacher, moved).item() > 0
    (gradient,) = torch.autograd.grad(loss, moved)
    assert gradient[:, 2].abs().max() > 0
    assert distillation_loss(teacher, teacher).item() < 1e-6 < loss.item()


def test_embeddings_are_compared_by_their_angle() -> None:
    teacher = torch.nn.functional.normalize(torch.randn(4, 8, generator=torch.Generator().manual_seed(0)), dim=1)
    torch.testing.assert_close(distillation_loss(-teacher, teacher), torch.tensor(2.0))
    torch.testing.assert_close(distillation_loss(3 * teacher, teacher), torch.tensor(0.0))
