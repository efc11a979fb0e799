"""Depth and width of detectors share a budget, too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cases.planning.networks import Residual, images
from torch import nn

from prunerecover import Budget, plan_pruning
from prunerecover.plan.evidence import SplitEvidence


class Picking(nn.Module):
    """Detector with a choice of likely boxes at each place, a different number in each image."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, 2), *(Residual(8) for _ in range(2)))
        self.head = nn.Conv2d(8, 7, 1)

    def forward(self, x: torch.Tensor) -> list[dict[str, torch.Tensor]]:
        found = []
        for places in self.head(self.body(x)).flatten(2).transpose(1, 2):
            scores, labels = places[:, 4:].sigmoid().max(-1)
            kept = scores > 0.55
            found.append({"boxes": places[kept, :4], "scores": scores[kept], "labels": labels[kept]})
        return found


@pytest.mark.slow
def test_plans_of_a_detector_are_compared_by_what_it_detects() -> None:
    torch.manual_seed(0)
    model = Picking().eval()
    assert len({len(one["scores"]) for one in model(images()[0][0])}) > 1

    def loss(network: nn.Module, batch: Any) -> torch.Tensor:
        return torch.stack([one["scores"].sum() for one in network(batch[0])]).mean()

    plan = plan_pruning(model, Budget(macs=0.3), batches=images(), loss=loss)
    assert any(one.divergence for one in SplitEvidence.of(plan.evidence).splits)
