"""`plan_width` by latency: a clock says how much goes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cases.width.plan_width import IMAGE, Batches, cnn, labelled_batches, removed_share, vit

from prunerecover import Budget, plan_width
from prunerecover.cost.macs import count_macs
from prunerecover.model.copies import share_copy
from prunerecover.session.session import Session
from prunerecover.surgery.apply_edits import apply_edits
from prunerecover.surgery.saved_cost import DenseCost
from prunerecover.width.planner import WidthPlanner


@pytest.fixture
def batches() -> Batches:
    return labelled_batches()


@pytest.mark.slow
@pytest.mark.parametrize("make", [cnn, vit], ids=["one kind", "kinds that are weighed"])
def test_latency_budget_is_measured(make: Any, batches: Batches, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that ticks once per MAC, a latency budget is one of MACs."""
    model = make()
    dense = count_macs(model, IMAGE)

    def clock(whole: DenseCost, edits: Any, wanted: float) -> float:
        copied = share_copy(whole.model)
        apply_edits(copied, edits)
        assert whole.cost == "latency"
        return 1 - count_macs(copied, IMAGE) / dense

    monkeypatch.setattr(DenseCost, "removed_share", clock)
    plan = plan_width(model, Budget(latency=0.3), batches=batches, allocation="per_cost")
    assert 0.3 <= removed_share(model, plan, "macs") < 0.35


def test_latency_is_measured_without_the_loss() -> None:
    from cases.models.tiny import tiny_llama

    ids = torch.randint(10, (2, 6))
    planner = WidthPlanner(Session(tiny_llama(), [{"input_ids": ids, "labels": ids}]))
    assert planner.session.first.kwargs.keys() == {"input_ids"}


def test_latency_that_cannot_go_is_refused(batches: Batches, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DenseCost, "removed_share", lambda *_, **__: 0.4)
    with pytest.raises(ValueError, match=r"can meet, 60.0% of the latency, but the most that was saved is 40.0%"):
        plan_width(cnn(), Budget(latency=0.6), batches=batches)
