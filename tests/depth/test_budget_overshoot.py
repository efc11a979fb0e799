"""A share of cost is met by the merged model, and exceeded by no more than the smallest unit holds."""

from __future__ import annotations

import warnings
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
from cases.engine import batch_of, batches_of, build
from cases.models.tiny import tiny_inputs, tiny_llama
from cases.sampling import one_in

from prunerecover import Budget, Plan, apply_plan, merge, plan_depth
from prunerecover.cost.macs import count_macs
from prunerecover.depth.arguments import DepthConfig
from prunerecover.depth.depth_search import DepthSearch
from prunerecover.depth.evidence import warn_of_excess
from prunerecover.model.batches import as_inputs
from prunerecover.plan.evidence import RemovedShare
from prunerecover.session.session import Session

MODELS = (("timm", "zero"), ("timm", "calibrated"), ("llama", "zero"), ("llama", "calibrated"))


@cache
def planner(name: str, **how: Any) -> DepthSearch:
    return DepthSearch(Session(build(name), batches_of(name)), config=DepthConfig(**how))


def macs_of(name: str, plan: Plan | None = None, merged: bool = True) -> int:
    network = build(name)
    if plan is not None:
        apply_plan(network, plan)
    if merged:
        merge(network)
    return count_macs(network, as_inputs(batch_of(name)).select(torch.tensor([0])))


@pytest.mark.parametrize(("model", "share"), one_in(4, product(MODELS, (0.1, 0.2, 0.3, 0.4, 0.5))))
def test_no_more_goes_beyond_a_budget_than_the_smallest_unit_holds(model: tuple[str, str], share: float) -> None:
    """Also where fitted maps stay, which cost something themselves."""
    name, replace = model
    found, dense = planner(name, replace=replace), macs_of(name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan = found.plan(Budget(macs=share))
    said = plan.evidence["removed_share"]["macs"]
    assert said["asked"] == share
    assert said["merged"] == pytest.approx(1 - macs_of(name, plan) / dense)
    assert said["smallest_unit"] <= min(u.macs for u in found.units) / dense + 1e-9
    assert share <= said["merged"] <= share + said["smallest_unit"] + 1e-9


def test_a_share_of_the_parameters_is_met_alike() -> None:
    said = planner("timm", replace="zero").plan(Budget(params=0.25)).evidence["removed_share"]["params"]
    assert said["asked"] == 0.25
    assert 0.25 <= said["merged"] <= 0.25 + said["smallest_unit"]


def test_evidence_says_what_goes_before_and_after_merging() -> None:
    config = DepthConfig(replace="identity", ignore=["blocks.?", "*.attn", "*.mlp"])
    plan = DepthSearch(Session(build("timm"), batches_of("timm")), config=config).plan(Budget(macs=0.2))
    said = plan.evidence["removed_share"]["macs"]
    assert said["live"] == pytest.approx(1 - macs_of("timm", plan, merged=False) / macs_of("timm")) == 0
    assert said["merged"] == pytest.approx(1 - macs_of("timm", plan) / macs_of("timm"))
    assert said["merged"] > 0.2


def test_a_budget_that_units_cannot_come_near_is_exceeded_with_a_warning() -> None:
    """One attention of 9% and whole blocks of 24%: 35% is missed by 13 points."""
    config = DepthConfig(replace="zero", ignore=["blocks.?.mlp*", "blocks.[123].attn"])
    found = DepthSearch(Session(build("timm"), batches_of("timm")), config=config)
    match = r"removes 48.7% of the macs for a budget of 35.0%, although the smallest unit holds 9.4%: what comes nearer"
    with pytest.warns(UserWarning, match=match):
        plan = found.plan(Budget(macs=0.35))
    said = plan.evidence["removed_share"]["macs"]
    assert said["merged"] - said["asked"] > said["smallest_unit"]


@pytest.mark.parametrize(("merged", "told"), [(0.219, False), (0.221, True)])
def test_less_than_two_points_too_much_are_not_told_however_small_units_are(merged: float, told: bool) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_excess("macs", RemovedShare(live=merged, merged=merged, asked=0.2, smallest_unit=0.0))
    assert len(caught) == told


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.6, 0.75])
def test_a_large_share_is_met_by_what_units_leave_in_the_end(share: float) -> None:
    """Blocks take the place of their parts, where these are all gone and what they leave costs too much."""
    plan = plan_depth(
        tiny_llama(num_hidden_layers=6),
        Budget(params=share),
        batches=[tiny_inputs("llama", 8, 12, seed) for seed in range(4)],
        search="greedy",
    )
    (removed,) = plan.evidence["removed_share"].values()
    spare = (
        removed["merged"] / len(plan.removed["block"]) if set(plan.removed) == {"block"} else removed["smallest_unit"]
    )
    assert share <= removed["merged"] <= share + spare  # a run of whole blocks holds as few as meet the budget
