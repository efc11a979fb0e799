"""Budgets of depth plans: in units, in shares of cost, and in measured latency."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from cases.depth.architectures import ARCHITECTURES
from cases.depth.clock import counts_parameters, parameters_left
from cases.depth.removal import removals_of
from cases.engine import batch_of, batches_of, build, unchanged
from cases.models.tiny import tiny_images, tiny_inputs, tiny_llama, tiny_timm
from cases.planning.networks import Plain
from cases.sampling import one_in
from torch import nn

import prunerecover.surgery.saved_cost as saved_cost
from prunerecover.apply import apply_plan
from prunerecover.cost.macs import count_macs
from prunerecover.cost.met_share import TRIES
from prunerecover.depth.arguments import DepthConfig
from prunerecover.depth.choice import Choice
from prunerecover.depth.depth_search import DepthSearch
from prunerecover.depth.evidence import warn_of_excess
from prunerecover.depth.layers.pruned_graph import NotRemovable
from prunerecover.depth.search.goals import Share
from prunerecover.model.batches import ModelInputs, as_inputs
from prunerecover.plan.budget import Budget
from prunerecover.plan.evidence import RemovedShare
from prunerecover.plan.plan import Plan
from prunerecover.plan.units import Unit
from prunerecover.planning.plan_depth import plan_depth
from prunerecover.session.session import Session
from prunerecover.sites.find import find_units
from prunerecover.surgery.merging import merge


def planned(budget: Budget | None = None, **how: Any) -> Plan:
    return plan_depth(build("timm"), budget, batches=batches_of("timm"), **how)


def test_share_of_cost_takes_the_shortest_prefix() -> None:
    """One unit fewer, in the order of importance per cost, would not be enough."""
    plan = planned(Budget(params=0.3), replace="zero", search="one_shot", ignore=["blocks.?"])
    model = build("timm")
    units = {u.name: u for u in find_units(model) if u.kind != "block"}
    order = sorted(units, key=lambda n: plan.evidence["importance"][n] / units[n].params)
    gone = [n for names in plan.removed.values() for n in names]
    last = max(order.index(n) for n in gone)
    total = sum(p.numel() for p in model.parameters())
    mlps = {u.block for n, u in units.items() if u.kind == "mlp" and n in order[: last + 1]}
    taken = [units[n] for n in order[:last] if units[n].kind != "activation" or units[n].block not in mlps]
    assert sum(u.params for u in taken) / total < 0.3 <= sum(units[n].params for n in gone) / total


@pytest.mark.parametrize("search", ["greedy", "one_shot"])
def test_the_last_block_that_is_not_ignored_may_go_where_ignored_ones_stay(search: str) -> None:
    plan = planned(Budget(macs=0.2), search=search, ignore=["blocks.[012]", "*.*.*"])
    assert plan.removed == {"block": ("blocks.3",)}


def test_units_inside_removed_ones_are_not_counted() -> None:
    """All blocks but one, and one attention: it has to be the one that is left; a removed MLP takes its activation."""
    plan = planned(remove={"block": 3, "attention": 1}, replace="zero")
    assert not any(plan.removed["attention"][0].startswith(f"{b}.") for b in plan.removed["block"])
    apply_plan(build("timm"), plan)
    plan = planned(remove={"mlp": 3, "activation": 1})
    mlps = {name.removesuffix(".mlp") for name in plan.removed["mlp"]}
    assert plan.removed["activation"][0].removesuffix(".mlp.act") not in mlps


@pytest.mark.parametrize(
    ("kinds", "search"), one_in(2, itertools.product(["attention", "layer"], [None, "greedy", "one_shot"]))
)
def test_nothing_goes_for_a_share_of_nothing(kinds: str, search: str | None) -> None:
    assert planned(Budget(macs=0.0), kinds=kinds, search=search).edits == ()


@pytest.mark.parametrize("budget", [Budget(remove={}), Budget(remove={"layer": 0}), Budget(latency=0.0)], ids=str)
def test_nothing_goes_for_a_budget_of_no_units(budget: Budget) -> None:
    """Of a network of no supported family."""
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    assert plan_depth(model, budget, batches=[torch.randn(8, 6)]).edits == ()


@pytest.mark.parametrize(("asked", "aimed"), [(0.4, 0.39), (0.02, 0.019)])
def test_a_share_of_latency_may_be_missed_a_little(asked: float, aimed: float, monkeypatch: pytest.MonkeyPatch) -> None:
    sought: list[float] = []

    def noted(_: Choice, goal: Share, __: Budget) -> tuple[dict[str, float], list[Unit]]:
        sought.append(goal.share)
        return {}, []

    monkeypatch.setattr(Choice, "chosen", noted)
    planned(Budget(latency=asked), search="greedy")
    planned(Budget(macs=asked), search="greedy")
    assert sought == [pytest.approx(aimed), asked]


MODELS = (("timm", "zero"), ("timm", "calibrated"), ("llama", "zero"), ("llama", "calibrated"))


@cache
def search_of(name: str, **how: Any) -> DepthSearch:
    return DepthSearch(Session(build(name), batches_of(name)), config=DepthConfig(**how))


def macs_of(name: str, plan: Plan | None = None, merged: bool = True) -> int:
    network = build(name)
    if plan is not None:
        apply_plan(network, plan)
    if merged:
        merge(network)
    return count_macs(network, as_inputs(batch_of(name)).select(torch.tensor([0])))


@pytest.mark.parametrize(("model", "share"), one_in(4, itertools.product(MODELS, (0.1, 0.2, 0.3, 0.4, 0.5))))
def test_no_more_goes_beyond_a_budget_than_the_smallest_unit_holds(model: tuple[str, str], share: float) -> None:
    """Also where fitted maps stay, which cost something themselves."""
    name, replace = model
    found, dense = search_of(name, replace=replace), macs_of(name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan = found.plan(Budget(macs=share))
    said = plan.evidence["removed_share"]["macs"]
    assert said["asked"] == share
    assert said["merged"] == pytest.approx(1 - macs_of(name, plan) / dense)
    assert said["smallest_unit"] <= min(u.macs for u in found.units) / dense + 1e-9
    assert share <= said["merged"] <= share + said["smallest_unit"] + 1e-9


def test_evidence_says_what_goes_before_and_after_merging() -> None:
    found = search_of("timm", replace="identity", ignore=("blocks.?", "*.attn", "*.mlp"))
    plan = found.plan(Budget(macs=0.2))
    said = plan.evidence["removed_share"]["macs"]
    assert said["live"] == pytest.approx(1 - macs_of("timm", plan, merged=False) / macs_of("timm")) == 0
    assert said["merged"] == pytest.approx(1 - macs_of("timm", plan) / macs_of("timm"))
    assert said["merged"] > 0.2


def test_a_budget_that_units_cannot_come_near_is_exceeded_with_a_warning() -> None:
    """One attention of 9% and whole blocks of 24%: 35% is missed by 13 points."""
    found = search_of("timm", replace="zero", ignore=("blocks.?.mlp*", "blocks.[123].attn"))
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
    blocks = set(plan.removed) == {"block"}
    spare = removed["merged"] / len(plan.removed["block"]) if blocks else removed["smallest_unit"]
    assert share <= removed["merged"] <= share + spare  # a run of whole blocks holds as few as meet the budget


SAMPLES = 2 * saved_cost.TIMED
IMAGES = [tiny_images(SAMPLES)]


def convolutions(blocks: int = 5) -> nn.Module:
    """Blocks that no family describes."""
    torch.manual_seed(0)
    body = [nn.Conv2d(3, 8, 3), *(Plain(8) for _ in range(blocks)), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*body, nn.Linear(8, 4)).eval()


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, float]]:
    return counts_parameters(monkeypatch)


def test_a_share_of_latency_is_found_by_bisection(timed: list[tuple[int, float]]) -> None:
    model = build("timm")
    with unchanged(model):
        plan = plan_depth(model, Budget(latency=0.4), batches=batches_of("timm"), replace="zero", search="one_shot")
    asked = [left for _, left in timed]
    assert min(a for a in asked if 1 - a >= 0.4) <= 0.6
    assert 1 - plan.result.params / sum(p.numel() for p in model.parameters()) > 0
    assert len(asked) <= 6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "kinds", "how"),
    [
        (tiny_timm, ("attention", "mlp"), {"replace": "zero"}),
        (convolutions, ("layer", "block"), {}),
        (convolutions, ("block",), {}),
    ],
    ids=["family", "layers and blocks", "blocks"],
)
def test_kinds_are_timed_on_few_samples_and_what_is_planned_on_all(
    timed: list[tuple[int, float]], make: Callable[[], nn.Module], kinds: tuple[str, ...], how: dict[str, Any]
) -> None:
    model = make()
    plan = plan_depth(model, Budget(latency=0.4), batches=IMAGES, kinds=kinds, search="greedy", **how)
    few = [left for samples, left in timed if samples == saved_cost.TIMED]
    assert len(few) == len(kinds), "each kind once"
    tried = [left for samples, left in timed if samples == SAMPLES]
    assert len(tried) <= TRIES + 1
    left = parameters_left(model, plan)
    assert left in [pytest.approx(one) for one in tried], "what is returned was measured"
    assert left <= 0.61 + 1e-6


@pytest.mark.slow
def test_the_latency_runs_on_the_real_clock() -> None:
    assert planned(Budget(latency=0.01), replace="zero", kinds="attention").edits


def test_a_kind_of_one_unit_is_timed(timed: list[tuple[int, float]]) -> None:
    plan = plan_depth(convolutions(2), Budget(latency=0.3), batches=IMAGES, kinds="block", ignore=["1"])
    assert plan.removed == {"block": ("2",)}
    assert timed


@pytest.mark.slow
def test_a_kind_whose_first_unit_stays_is_timed(timed: list[tuple[int, float]]) -> None:
    """Widths around its first layer cannot follow."""
    removals = removals_of(*ARCHITECTURES["1-d"]())
    first = next(unit for unit in removals.units if unit.kind == "layer")
    with pytest.raises(NotRemovable):
        removals.edits([first])
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randn(SAMPLES, *arg.shape[1:], generator=generator) for arg in removals.example.args]
    plan = plan_depth(removals.model, Budget(latency=0.25), batches=[ModelInputs(tuple(inputs))], kinds="layer")
    assert plan.removed["layer"]
    assert parameters_left(removals.model, plan) <= 0.76
