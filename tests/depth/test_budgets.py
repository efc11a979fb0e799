"""Budgets of depth plans: in units, in shares of cost, and in measured latency."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from cases.depth.clock import counts_parameters, parameters_left
from cases.engine import batch_of, batches_of, build, loss, unchanged
from cases.sampling import one_in
from torch import nn

import prunerecover.surgery.saved_cost as saved_cost
from prunerecover.apply import apply_plan
from prunerecover.cost.macs import count_macs
from prunerecover.depth.choice import Choice
from prunerecover.depth.search.goals import Share
from prunerecover.model.batches import as_inputs
from prunerecover.plan.budget import Budget
from prunerecover.plan.plan import Plan
from prunerecover.plan.units import Unit
from prunerecover.planning.plan_depth import plan_depth
from prunerecover.sites.find import find_units
from prunerecover.surgery.merging import merge


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "cost", "replace"),
    one_in(
        3,
        [
            *((name, cost, "calibrated") for name in ("timm_all", "llama", "gpt2") for cost in ("macs", "params")),
            ("timm_all", "macs", "zero"),
            ("gpt2", "params", "zero"),
        ],
    ),
)
def test_share_of_cost_is_met_by_the_merged_model(name: str, cost: str, replace: str) -> None:
    """Also where fitted maps stay, which cost something themselves."""
    model = build(name)
    plan = plan_depth(model, Budget(**{cost: 0.3}), batches=batches_of(name), replace=replace)
    one = as_inputs(batch_of(name)).select(torch.tensor([0]))
    pruned = copy.deepcopy(model)
    apply_plan(pruned, plan)
    merge(pruned)

    def spent(m: nn.Module) -> int:
        return count_macs(m, one) if cost == "macs" else sum(p.numel() for p in m.parameters())

    assert 1 - spent(pruned) / spent(model) >= 0.3


def test_share_of_cost_takes_the_shortest_prefix() -> None:
    """One unit fewer, in the order of importance per cost, would not be enough."""
    model = build("timm")
    plan = plan_depth(
        model, Budget(params=0.3), batches=batches_of("timm"), replace="zero", search="one_shot", ignore=["blocks.?"]
    )
    units = {u.name: u for u in find_units(model) if u.kind != "block"}
    order = sorted(units, key=lambda n: plan.evidence["importance"][n] / units[n].params)
    gone = [n for names in plan.removed.values() for n in names]
    last = max(order.index(n) for n in gone)
    total = sum(p.numel() for p in model.parameters())
    mlps = {u.block for n, u in units.items() if u.kind == "mlp" and n in order[: last + 1]}
    taken = [units[n] for n in order[:last] if units[n].kind != "activation" or units[n].block not in mlps]
    assert sum(u.params for u in taken) / total < 0.3 <= sum(units[n].params for n in gone) / total


def test_share_of_latency_is_found_by_bisection(monkeypatch: pytest.MonkeyPatch) -> None:
    timed, model = counts_parameters(monkeypatch), build("timm")
    with unchanged(model):
        plan = plan_depth(model, Budget(latency=0.4), batches=batches_of("timm"), replace="zero", search="one_shot")
    asked = [left for _, left in timed]
    assert min(a for a in asked if 1 - a >= 0.4) <= 0.6
    assert 1 - plan.result.params / sum(p.numel() for p in model.parameters()) > 0
    assert len(asked) <= 6


@pytest.mark.slow
def test_kinds_are_timed_on_few_samples_and_what_is_planned_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    timed = counts_parameters(monkeypatch)
    how = {"kinds": ("attention", "mlp"), "replace": "zero", "search": "greedy"}
    images = torch.cat([as_inputs(batch).args[0] for batch in batches_of("timm")])
    model, batches = build("timm"), [images.repeat(-(-2 * saved_cost.TIMED // len(images)), 1, 1, 1)]
    plan = plan_depth(model, Budget(latency=0.5), batches=batches, **how)
    few = [left for samples, left in timed if samples == saved_cost.TIMED]
    assert len(few) == len(how["kinds"]), "each kind once"
    assert len(batches[0]) > saved_cost.TIMED
    tried = [left for samples, left in timed if samples == len(batches[0])]
    left = parameters_left(model, plan)
    assert left in [pytest.approx(one) for one in tried], "what is returned was measured"
    assert left <= 0.51 + 1e-6


@pytest.mark.slow
def test_latency_budget_runs_on_the_real_clock() -> None:
    model = build("timm")
    plan = plan_depth(model, Budget(latency=0.01), batches=batches_of("timm"), replace="zero", kinds="attention")
    assert plan.edits


def test_importances_of_several_kinds_are_not_compared() -> None:
    with pytest.raises(ValueError, match="its values differ in scale between kinds and must not be compared"):
        plan_depth(build("timm"), Budget(macs=0.2), batches=batches_of("timm"), importance="gate_gradient", loss=loss)


def test_importance_of_one_kind_may_fill_a_share_of_cost() -> None:
    plan = plan_depth(
        build("timm"),
        Budget(params=0.1),
        batches=batches_of("timm"),
        importance="magnitude",
        ignore=["blocks.?", "*.mlp", "*.act"],
    )
    assert set(plan.removed) == {"attention"}


def test_share_that_cannot_be_met_is_refused() -> None:
    with pytest.raises(ValueError, match=r"units that hold 90.0% of the macs, but all 4 that may go hold"):
        plan_depth(
            build("timm"), Budget(macs=0.9), batches=batches_of("timm"), replace="zero", ignore=["blocks.?", "*.mlp*"]
        )


@pytest.mark.parametrize("search", ["greedy", "one_shot"])
def test_the_last_block_that_is_not_ignored_may_go_where_ignored_ones_stay(search: str) -> None:
    plan = plan_depth(
        build("timm"), Budget(macs=0.2), batches=batches_of("timm"), search=search, ignore=["blocks.[012]", "*.*.*"]
    )
    assert plan.removed == {"block": ("blocks.3",)}


def test_ratio_rounds_to_units() -> None:
    plan = plan_depth(build("timm"), Budget(ratio={"attention": 0.5, "mlp": 0.3}), batches=batches_of("timm"))
    assert {kind: len(names) for kind, names in plan.removed.items()} == {"attention": 2, "mlp": 1}


def test_units_inside_removed_ones_are_not_counted() -> None:
    """All blocks but one, and one attention: it has to be the one that is left; a removed MLP takes its activation."""
    model = build("timm")
    plan = plan_depth(model, remove={"block": 3, "attention": 1}, batches=batches_of("timm"), replace="zero")
    assert not any(plan.removed["attention"][0].startswith(f"{b}.") for b in plan.removed["block"])
    apply_plan(model, plan)
    plan = plan_depth(build("timm"), remove={"mlp": 3, "activation": 1}, batches=batches_of("timm"))
    mlps = {name.removesuffix(".mlp") for name in plan.removed["mlp"]}
    assert plan.removed["activation"][0].removesuffix(".mlp.act") not in mlps


def test_ignored_units_stay() -> None:
    plan = plan_depth(build("timm"), remove={"attention": 2}, batches=batches_of("timm"), ignore=["blocks.[01].*"])
    assert set(plan.removed["attention"]) == {"blocks.2.attn", "blocks.3.attn"}


def test_nothing_to_remove_gives_the_empty_plan() -> None:
    plan = plan_depth(build("timm"), remove={"attention": 0}, batches=batches_of("timm"))
    assert plan == Plan()


@pytest.mark.parametrize(
    ("kinds", "search"), one_in(2, itertools.product(["attention", "layer"], [None, "greedy", "one_shot"]))
)
def test_nothing_goes_for_a_share_of_nothing(kinds: str, search: str | None) -> None:
    plan = plan_depth(build("timm"), Budget(macs=0.0), batches=batches_of("timm"), kinds=kinds, search=search)
    assert plan.edits == ()


@pytest.mark.slow
@pytest.mark.parametrize("budget", [Budget(macs=0.0), Budget(params=0.0), Budget(latency=0.0)], ids=str)
def test_nothing_of_any_kind_goes_for_a_share_of_nothing(budget: Budget) -> None:
    assert plan_depth(build("timm"), budget, batches=batches_of("timm")).edits == ()


@pytest.mark.parametrize("budget", [Budget(remove={}), Budget(remove={"layer": 0})], ids=str)
def test_nothing_goes_for_a_budget_of_no_units(budget: Budget) -> None:
    """Of a network of no supported family."""
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    assert plan_depth(model, budget, batches=[torch.randn(8, 6)]).edits == ()


@pytest.mark.parametrize(("asked", "aimed"), [(0.4, 0.39), (0.02, 0.019)])
def test_a_share_of_latency_may_be_missed_as_far_as_clocks_differ(
    asked: float, aimed: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    sought: list[float] = []

    def noted(_: Choice, goal: Share, __: Budget) -> tuple[dict[str, float], list[Unit]]:
        sought.append(goal.share)
        return {}, []

    monkeypatch.setattr(Choice, "chosen", noted)
    for budget in (Budget(latency=asked), Budget(macs=asked)):
        plan_depth(build("timm"), budget, batches=batches_of("timm"), search="greedy")
    assert sought == [pytest.approx(aimed), asked]
