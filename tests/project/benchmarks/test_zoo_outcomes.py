"""Outcomes of the zoo's trials: with the requested share, with silent failures, or with less than requested."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.zoo import depth_trial, width_trial
from benchmarks.zoo.depth_trial import judged as judged_depth
from benchmarks.zoo.networks.network import Network
from benchmarks.zoo.trial import Ended, batches, dense, silently, trained_and_saved
from benchmarks.zoo.width_trial import judged
from prunerecover import Budget, Plan, plan_depth, plan_width
from prunerecover.plan.records import Result
from prunerecover.refusal import Refusal

QUICK, DEEP = "gcn", "residual-super-resolution"
Run = Callable[..., dict[str, Any]]


def test_a_share_other_than_the_one_asked_for_needs_a_warning() -> None:
    assert judged(0.319, [])["outcome"] == "ok"
    assert judged(0.35, ["30% were asked for"])["outcome"] == "over"
    assert judged(0.25, [])["outcome"] == "failed"
    assert judged(0.35, ["30% were asked for, and 35.0% go"])["outcome"] == "ok"
    assert judged(0.05, [], asked=0.04)["outcome"] == "ok"
    assert judged(0.07, [], asked=0.04)["outcome"] == "over"


def test_a_network_that_is_not_what_its_plan_says_fails() -> None:
    plan = Plan(result=Result(params=6, macs=60))
    assert judged_depth((10, 100), (6, 60), plan) == [0.4, 0.4]
    for after in ((7, 60), (6, 100)):
        with pytest.raises(Ended, match="of .10, 100. parameters and MACs .* are left, and the plan says .6, 60."):
            judged_depth((10, 100), after, plan)


class Half(nn.Module):
    """Two layers, the second optional."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.cut = nn.Linear(4, 8), nn.Linear(8, 4), False

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        return hidden if self.cut else self.second(hidden)


def test_a_parameter_that_no_longer_gets_a_gradient_is_dead(tmp_path: Path) -> None:
    network = Network("half", Half, lambda generator: (torch.randn(2, 4, generator=generator), torch.tensor([0, 1])))
    for cut, expected in ((False, []), (True, ["second.bias", "second.weight"])):
        model = dense(network, 0)
        model.cut = cut
        assert trained_and_saved(model, Plan(), batches(network), network, tmp_path / str(cut)) == expected
    assert silently(["second.bias"], 30)["outcome"] == "dead"


@pytest.mark.slow
def test_too_many_units_are_over(run: Run, calls: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(depth_trial, "drawn", lambda units, most_blocks: ["layer"])
    monkeypatch.setattr(
        depth_trial, "_planned", lambda model, given, *_: plan_depth(model, remove={"layer": 2}, batches=given)
    )
    found = run("--suite", "plain", "--only", DEEP, kind="depth")
    assert [row["outcome"] for row in found["rows"]] == ["over"]
    assert f"- {DEEP} (plain, over): 2 units go instead of 1" in found["page"]
    assert "| 0 | 0 | 0, 1, 0 |" in found["page"]


@pytest.mark.slow
def test_half_of_what_can_go_is_asked_for_where_less_than_the_share_can(
    run: Run, calls: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def limited(model: nn.Module, budget: Budget, **options: Any) -> Plan:
        if budget.macs > 0.2:
            raise Refusal("a budget that the groups can meet", "at most 20.0% can go", "Lower the budget.")
        return plan_width(model, budget, **options)

    monkeypatch.setattr(width_trial, "plan_width", limited)
    found = run("--suite", "plain", "--only", QUICK)
    [row] = found["rows"]
    assert (row["outcome"], row["asked"]) == ("ok", 0.1)
    assert row["removed"] == pytest.approx(0.1, abs=0.02)
    assert row["less_parts"] == {"cause": "at most 20.0% can go", "way_out": "Lower the budget."}
    assert f"- {QUICK} (plain, ok): Expected a budget that the groups can meet, but at most 20.0%" in found["page"]
