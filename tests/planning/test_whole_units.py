"""Networks with BatchNorm: whole units alone are compared with depth and width together, after reconstruction."""

from __future__ import annotations

import pytest
import torch
from cases.planning.networks import Residual, images
from torch import nn

from prunerecover import Budget, plan_pruning
from prunerecover.plan.evidence import SplitEvidence


@pytest.mark.slow
def test_a_network_with_batchnorm_is_also_planned_with_whole_units_alone() -> None:
    torch.manual_seed(0)
    body = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), *(Residual(8) for _ in range(4)), nn.AdaptiveAvgPool2d(1)]
    model = nn.Sequential(*body, nn.Flatten(), nn.Linear(8, 4)).eval()
    plan = plan_pruning(model, Budget(macs=0.3), batches=images(6))
    splits = [one for one in SplitEvidence.of(plan.evidence).splits if not one.refused]
    assert splits[1].depth == 1
    assert all(one.divergence is not None for one in splits)
    best = min(splits, key=lambda one: one.divergence or 0.0)
    assert ("block" in plan.removed and "channel" not in plan.removed) == (best is splits[1])
