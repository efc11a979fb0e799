"""Budgets of BoundaryDPT's search: units, shares of cost, and larger splits where a plan falls short."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from cases.boundary import BATCHES, LAYERS, QUICK, Told, attention_hurts, hill, quick_planner, split_of
from cases.depth.clock import counts_parameters
from cases.engine import batch_of, build
from torch import nn

from prunerecover.apply import apply_plan
from prunerecover.boundary.designs import Split, affordable_splits, feasible_splits
from prunerecover.boundary.feasible import TYPES, CostLine, feasible_within, layers_of
from prunerecover.boundary.plan_boundary import plan_boundary
from prunerecover.boundary.search import BoundaryConfig, BoundarySearch
from prunerecover.cost.macs import count_macs
from prunerecover.depth.depth_search import DepthSearch
from prunerecover.model.batches import as_inputs
from prunerecover.plan.budget import Budget
from prunerecover.plan.plan import Plan
from prunerecover.session.session import Session
from prunerecover.surgery.merging import merge


@pytest.mark.parametrize(("n_remove", "expected"), [(0, (0, 0)), (1, (0, 1)), (7, (3, 4)), (8, (4, 4))])
def test_budgets_with_fewer_than_three_splits_are_planned_too(n_remove: int, expected: Split) -> None:
    """Each split is run once; no curve is asked for."""
    told = Told(attention_hurts)
    plan = plan_boundary(build("timm"), n_remove=n_remove, evaluate=told, **QUICK)
    assert split_of(plan) == expected
    assert told.splits == [list(feasible_splits(LAYERS, n_remove=n_remove))]


def macs_removed(model: nn.Module, plan: Plan) -> float:
    """By the merged model, counted."""
    pruned = copy.deepcopy(model)
    apply_plan(pruned, plan)
    merge(pruned)
    one = as_inputs(batch_of("timm")).select(torch.tensor([0]))
    return 1 - count_macs(pruned, one) / count_macs(model, one)


@pytest.mark.parametrize("share", [0.3, 0.8])
def test_every_split_of_a_share_of_macs_meets_it_and_no_unit_is_spare(share: float) -> None:
    model = build("timm")
    planner = quick_planner(model)
    splits = feasible_within(planner, Budget(macs=share)).splits
    search = BoundarySearch(planner, splits, Told(hill))
    assert splits
    for attention, activation in splits:
        assert macs_removed(model, search.plan_of((attention, activation))) >= share - 1e-9
        if activation:
            assert macs_removed(model, search.plan_of((attention, activation - 1))) < share


@pytest.mark.parametrize("cost", ["macs", "params"])
def test_the_pick_of_a_share_is_the_best_split_that_meets_it(cost: str) -> None:
    model, told = build("timm"), Told(attention_hurts)
    plan = plan_boundary(model, Budget(**{cost: 0.3}), evaluate=told, **QUICK)
    splits = feasible_within(quick_planner(model), Budget(**{cost: 0.3})).splits
    assert split_of(plan) == max(splits, key=lambda split: attention_hurts(*split))
    assert {split for split, _ in told.runs} <= set(splits)


def activation_hurts(attention: int, activation: int) -> float:
    return 80.0 - attention - 6 * activation


@pytest.mark.slow
def test_a_share_is_met_with_what_units_leave() -> None:
    """Maps of removed attentions have a cost: a larger split is planned, without more runs."""
    model, told = build("timm"), Told(activation_hurts)
    planner = DepthSearch(Session(model, BATCHES), TYPES)
    share = 4 * planner.share_of_one("attention", "macs")
    by_addition = feasible_within(planner, Budget(macs=share)).splits
    picked = BoundarySearch(planner, by_addition, told).run()[1]
    assert macs_removed(model, picked) < share
    runs = list(told.runs)
    search = BoundarySearch(planner, by_addition, told, more=feasible_within(planner, Budget(macs=share)).more)
    fitted, plan = search.run()
    assert macs_removed(model, plan) >= share - 1e-9
    assert told.runs == runs + runs
    assert split_of(plan) == (3, 1)
    assert fitted.best(splits=by_addition).split == (4, 0)
    assert plan.edits == plan_boundary(model, Budget(macs=share), batches=BATCHES, evaluate=told).edits


@pytest.mark.parametrize("surface", [None, "parabola"])
def test_of_further_splits_the_nearest_is_planned_even_off_the_line_of_the_runs(surface: str | None) -> None:
    def more(plan: Plan) -> tuple[Split, ...]:
        return () if sum(split_of(plan)) == 6 else ((2, 4), (3, 3), (4, 2))

    splits = feasible_splits(4, n_remove=3)
    planner = quick_planner(build("timm"))
    search = BoundarySearch(planner, splits, Told(attention_hurts), BoundaryConfig(surface=surface), more)
    assert split_of(search.run()[1]) == (2, 4)


def test_splits_beyond_a_share_save_what_a_plan_falls_short() -> None:
    plan = plan_boundary(build("timm"), n_remove=3, evaluate=Told(hill), **QUICK)
    added = sum(n * saved for n, saved in zip(split_of(plan), (0.05, 0.1), strict=True))
    line = CostLine((4, 4), 0.05, 0.1, 0.2, removed=lambda plan: 0.18, slack=0.01)
    assert line.more(plan) == affordable_splits(4, 0.05, 0.1, added + 0.02)
    assert replace(line, slack=0.02).more(plan) == ()
    assert replace(line, removed=lambda plan: 0.2).more(plan) == ()


def test_a_share_that_removing_everything_does_not_meet_is_refused() -> None:
    plan = plan_boundary(build("timm"), n_remove=8, evaluate=Told(hill), **QUICK)
    line = CostLine((4, 4), 0.05, 0.1, 0.6, removed=lambda plan: 0.55)
    with pytest.raises(ValueError, match=r"budget that removing everything meets, but got 0\.6 and 0\.550 of the cost"):
        line.more(plan)


def test_a_share_of_latency_is_measured_per_type(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock of parameters, the splits equal the splits of a share of parameters."""
    timed, planner = counts_parameters(monkeypatch), quick_planner(build("timm"))
    splits = feasible_within(planner, Budget(params=0.3)).splits
    assert feasible_within(planner, Budget(latency=0.3)).splits == splits
    assert {samples for samples, _ in timed} == {as_inputs(BATCHES[0]).n_samples}
    assert as_inputs(BATCHES[0]).n_samples > 1


def test_ignored_units_are_not_counted() -> None:
    planner = quick_planner(build("timm"), ignore=["blocks.0.*", "blocks.3.attn"])
    assert layers_of(planner) == (2, 3)
    assert feasible_within(planner, n_keep=1).splits == ((1, 3), (2, 2))
