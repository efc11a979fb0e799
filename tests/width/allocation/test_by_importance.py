"""Allocations against exhaustive search and plain loops, and the budgets that they promise to meet."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from cases.width.allocations import RULES, SHARES, Network, agreeing, allocate, drawn, gone, resnet20, share_gone, small
from torch import Tensor

from prunerecover.plan.budget import Budget
from prunerecover.plan.groups import Group
from prunerecover.width.allocation.by_importance import global_ranking, per_cost, share_saved, uniform
from prunerecover.width.allocation.cost_model import Cost
from prunerecover.width.allocation.tolerance_allocation import tolerance_allocation


@pytest.mark.parametrize("what", ["macs", "params"])
@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("rule", RULES)
def test_every_budget_is_met_within_a_point(rule: str, share: float, what: str) -> None:
    groups, costs = resnet20()
    removed = RULES[rule](groups, drawn(groups), costs, Budget(**{what: share}))
    assert share <= share_gone(resnet20(), removed, what) < share + 0.01
    for group in groups:
        assert len(removed[group.name]) <= 0.9 * group.size
        assert removed[group.name].tolist() == sorted(set(removed[group.name].tolist()))


def greedy_by_loop(network: Network, scores: Mapping[str, Tensor], what: str, share: float, damping: float) -> Any:
    """Compute every key of every group again for every unit; nothing is given back."""
    groups, costs = network
    counts = {g.name: 0 for g in groups}
    order = {name: scores.sort().values for name, scores in scores.items()}
    while True:
        kept = {g.name: g.size - counts[g.name] for g in groups}
        if 1 - getattr(costs.total(kept), what) / getattr(costs.full, what) >= share:
            return counts
        keys = {}
        for g in groups:
            if counts[g.name] < int(0.9 * g.size):
                less = costs.total({**kept, g.name: kept[g.name] - 1})
                saving = Cost(costs.total(kept).macs - less.macs, costs.total(kept).params - less.params)
                keys[g.name] = float(order[g.name][counts[g.name]]) / share_saved(saving, costs.full, what)
                keys[g.name] /= (kept[g.name] / g.size) ** damping
        counts[min(keys, key=lambda name: keys[name])] += 1


@pytest.mark.parametrize(("what", "damping"), [("macs", 0.0), ("macs", 1.0), ("params", 0.5)])
@pytest.mark.parametrize("share", [0.2, 0.5])
def test_late_updates_find_what_a_plain_loop_finds(share: float, what: str, damping: float) -> None:
    """Up to units given back, none of which could be removed beyond the budget."""
    groups, costs = resnet20()
    scores = drawn(groups)
    removed = gone(per_cost(groups, scores, costs, Budget(**{what: share}), damping=damping))
    expected = greedy_by_loop(resnet20(), scores, what, share, damping)
    assert all(removed[name] <= expected[name] for name in expected)
    assert sum(expected.values()) - sum(removed.values()) < 12
    kept = {g.name: g.size - removed[g.name] for g in groups}
    for name, count in removed.items():
        if count:
            back = costs.total({**kept, name: kept[name] + 1})
            assert 1 - getattr(back, what) / getattr(costs.full, what) < share


def test_units_go_in_the_order_of_their_scores_on_any_scale() -> None:
    groups, costs = resnet20()
    scores = drawn(groups)
    louder = {name: 1000 * values for name, values in scores.items()}
    for rule in RULES.values():
        removed = rule(groups, scores, costs, Budget(macs=0.4))
        assert gone(rule(groups, louder, costs, Budget(macs=0.4))) == gone(removed)
        for name, units in removed.items():
            kept = torch.ones(len(scores[name]), dtype=torch.bool)
            kept[units] = False
            assert not len(units) or scores[name][units].max() <= scores[name][kept].min()


def test_global_ranking_has_one_threshold_and_uniform_takes_the_same_share() -> None:
    """Up to units given back, to a unit, and to groups at their limit."""
    groups, costs = resnet20()
    scores = drawn(groups)
    removed = global_ranking(groups, scores, costs, Budget(macs=0.4))
    highest = max(float(scores[name][units].max()) for name, units in removed.items() if len(units))
    below = sum(int((scores <= highest).sum()) for scores in scores.values())
    assert 0 <= below - sum(map(len, removed.values())) < 12
    removed = uniform(groups, scores, costs, Budget(macs=0.4))
    shares = [(len(removed[g.name]) / g.size, 1 / g.size) for g in groups]
    assert max(s - unit for s, unit in shares) <= min(s + unit for s, unit in shares)


@pytest.mark.parametrize("rule", [*RULES, "fair_pruner"])
def test_rules_of_the_groups_hold(rule: str) -> None:
    """At least 5 stay, in multiples of 4; other sizes are brought to a multiple first."""
    groups, costs = resnet20()
    strict = tuple(replace(g, at_least=5, multiple=4) for g in groups)
    for share in (0.2, 0.6):
        removed = allocate(rule, strict, costs, Budget(macs=share))
        assert share <= share_gone(resnet20(), removed, "macs")
        assert all((g.size - len(removed[g.name])) % 4 == 0 for g in groups)
        assert all(g.size - len(removed[g.name]) >= 8 for g in groups)
    few, few_costs = small()
    odd = tuple(replace(g, multiple=4) for g in few)
    removed = uniform(odd, drawn(few), few_costs, Budget(macs=0.01))
    assert all(len(units) in (0, g.size % 4 or 4) for g, units in zip(odd, removed.values(), strict=True))


def test_a_budget_of_nothing_removes_nothing() -> None:
    groups, costs = resnet20()
    for rule in RULES.values():
        assert not any(map(len, rule(groups, drawn(groups), costs, Budget(macs=0.0)).values()))
    found = tolerance_allocation(groups, *agreeing(groups), budget=Budget(macs=0.0), costs=costs)
    assert not any(map(len, found.removed.values()))


def test_units_that_save_nothing_stay() -> None:
    """Experts save no MACs: a division by zero must not put them first, or last."""
    groups, costs = small()
    idle = Group("experts", "expert", 8, ())
    wider = replace(costs, sizes={**costs.sizes, "experts": 8}, linear={**costs.linear, "experts": (0, 5)})
    wider = replace(wider, blocks={**costs.blocks, "experts": ()})
    removed = per_cost((*groups, idle), {**drawn(groups), "experts": torch.zeros(8)}, wider, Budget(macs=0.4))
    assert not len(removed["experts"])


# Refusals


THIRD = Budget(macs=0.3)
FINITE = r"one finite score per unit of 'conv1', shape \(6,\), but got shape"
REFUSED: list[tuple[Any, Budget, dict[str, Tensor], dict[str, float], str]] = [
    (per_cost, Budget(latency=0.3), {}, {}, "Expected a budget of MACs, parameters or units, but got {'latency'"),
    (uniform, THIRD, {"conv1": torch.zeros(3)}, {}, FINITE),
    (uniform, THIRD, {"conv1": torch.full((6,), torch.nan)}, {}, FINITE),
    (per_cost, THIRD, {"conv1": torch.full((6,), -1.0)}, {}, "scores that are not negative, but 'conv1' has -1"),
    *((per_cost, THIRD, {}, {"damping": d}, "damping to be finite and at least 0") for d in (-1, math.inf, math.nan)),
    (uniform, THIRD, {}, {"most": 1.5}, r"the most that a group may lose as a share in \(0, 1\], but got 1.5"),
]


@pytest.mark.parametrize(("rule", "budget", "scores", "how", "message"), REFUSED)
def test_what_no_rule_takes_is_refused(rule: Any, budget: Budget, scores: Any, how: Any, message: str) -> None:
    groups, costs = small()
    with pytest.raises(ValueError, match=message):
        rule(groups, {**drawn(groups), **scores}, costs, budget, **how)


def test_a_tolerance_needs_scores_of_all_groups() -> None:
    groups, _ = small()
    scores = drawn(groups)
    with pytest.raises(ValueError, match=r"Expected one finite score per unit of 'conv1'.*but got none"):
        tolerance_allocation(groups, {n: s for n, s in scores.items() if n != "conv1"}, scores, tolerance=0.1)
