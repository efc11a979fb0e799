"""`plan_width` in rounds and by latency: the budget is the same, and rounds go on from what is left."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from cases.width.plan_width import IMAGE, Batches, cnn, labelled_batches, removed_share, vit
from torch import nn

from prunerecover import Budget, apply_plan, find_groups, plan_width, recalibrate_batchnorm
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
    plan = plan_width(model, Budget(latency=0.3), batches=batches)
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


@pytest.mark.slow
def test_rounds_meet_the_same_budget(batches: Batches) -> None:
    model = cnn()
    plan = plan_width(model, Budget(macs=0.4), batches=batches, rounds=3)
    assert 0.4 <= removed_share(model, plan, "macs") < 0.45
    apply_plan(model, plan)
    assert plan.result.macs == count_macs(model, IMAGE)


@pytest.mark.parametrize("cost", ["macs", "params"])
def test_rounds_do_not_take_what_others_took_beyond_their_part(batches: Batches, cost: str) -> None:
    """Each of four rounds needs half a neuron, and can take no less than one."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 8, bias=False), nn.ReLU(), nn.Linear(8, 4, bias=False))
    apply_plan(model, plan_width(model, Budget(**{cost: 0.25}), batches=batches, rounds=4))
    assert model[1].out_features == 6


@pytest.mark.slow
def test_rounds_score_what_recalibrated_networks_do(batches: Batches) -> None:
    """A last batch of one sample is not recalibrated on."""
    batches = [*batches, tuple(part[:1] for part in batches[0])]
    model, ten = cnn(), Budget(remove={"channel": 10})
    together = plan_width(model, Budget(remove={"channel": 20}), batches=batches, rounds=2)
    first = plan_width(model, ten, batches=batches)
    apply_plan(model, first)
    recalibrate_batchnorm(model, batches[:-1])
    apart = first + plan_width(model, ten, batches=batches)
    assert apart.edits == together.edits
    assert all(torch.equal(value, together.tensors[name]) for name, value in first.tensors.items())


@pytest.mark.slow
def test_rounds_leave_hooks_of_the_model_behind(batches: Batches) -> None:
    """They may lead to what cannot be copied, such as a logger's lock."""

    class Logger:
        def __init__(self) -> None:
            self.lock = threading.Lock()

        def see(self, *_: Any) -> None:
            return None

    model = cnn()
    plan = plan_width(model, Budget(macs=0.3), batches=batches, rounds=2)
    model.conv1.register_forward_hook(Logger().see)
    assert plan_width(model, Budget(macs=0.3), batches=batches, rounds=2) == plan


@pytest.mark.slow
def test_rounds_say_what_was_asked_and_what_is_kept(batches: Batches) -> None:
    model = cnn()
    plan = plan_width(model, Budget(macs=0.4), batches=batches, rounds=3)
    assert plan.made_by.arguments["budget"] == {"macs": 0.4}
    assert plan.made_by.arguments["rounds"] == 3
    groups = {group.name: group.size for group in find_groups(model, IMAGE).groups}
    apply_plan(model, plan)
    for name, size in groups.items():
        assert plan.evidence["kept"][name] == [model.get_parameter(f"{name}.weight").shape[0], size]
