"""Tolerance of Difference: its algebra by brute force, its properties, and allocations with and without a budget."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cases.width.allocations import SHARES, agreeing, gone, resnet20, share_gone
from cases.width.scores import removable
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from prunerecover.plan.budget import Budget
from prunerecover.plan.groups import Group
from prunerecover.width.allocation.by_importance import lowest
from prunerecover.width.allocation.cost_model import Cost, CostModel
from prunerecover.width.allocation.tolerance import exchange, protected_mass, tolerance_of_difference
from prunerecover.width.allocation.tolerance_allocation import tolerance_allocation, tolerance_evidence


def by_sets(removal: Tensor, protection: Tensor) -> list[float]:
    """The definition: the bottom m by removal and the top m by protection, as sets; ties go to the lower index."""
    n = len(removal)
    low = sorted(range(n), key=lambda j: (float(removal[j]), j))
    high = sorted(range(n), key=lambda j: (-float(protection[j]), j))
    return [len(set(low[:m]) & set(high[:m])) / m for m in range(1, n + 1)]


MANY = settings(max_examples=60, deadline=None)


@st.composite
def signals(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Two scores of up to 40 units, with ties."""
    n = draw(st.integers(1, 40))
    values = st.lists(st.integers(0, 12), min_size=n, max_size=n)
    return torch.tensor(draw(values), dtype=torch.float64), torch.tensor(draw(values), dtype=torch.float64)


@MANY
@given(signals())
def test_one_count_equals_the_overlap_of_sets(scores: tuple[Tensor, Tensor]) -> None:
    assert tolerance_of_difference(*scores).tolist() == by_sets(*scores)


@MANY
@given(signals(), st.floats(0, 1))
def test_removable_is_the_largest_depth_within_the_tolerance(scores: tuple[Tensor, Tensor], tolerance: float) -> None:
    curve, n = by_sets(*scores), len(scores[0])
    allowed = [m for m in range(1, 99 * n // 100 + 1) if curve[m - 1] <= tolerance]
    assert removable(*scores, tolerance) == max(allowed, default=0)


@MANY
@given(signals(), st.data())
def test_protected_mass_stays_within_what_ranks_allow(scores: tuple[Tensor, Tensor], data: st.DataObject) -> None:
    removal, protection = scores
    m = data.draw(st.integers(0, len(removal)))
    lost, bound = protected_mass(removal, protection, m)
    overlap = round(by_sets(removal, protection)[m - 1] * m) if m else 0
    assert lost <= bound == float(protection.sort(descending=True).values[:overlap].sum())


@MANY
@given(signals(), signals(), st.data())
def test_exchange_decides_by_the_total_protection_that_goes(first: Any, second: Any, data: st.DataObject) -> None:
    removal, protection = ({"a": first[i], "b": second[i]} for i in (0, 1))
    counts = [{name: data.draw(st.integers(0, len(removal[name]))) for name in removal} for _ in range(2)]
    lost = [sum(float(protection[n][removal[n].argsort(stable=True)[: c[n]]].sum()) for n in removal) for c in counts]
    result = exchange(removal, protection, *counts)
    assert result.taken - result.spared == pytest.approx(lost[0] - lost[1])


def test_scores_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match=r"Expected two scores per unit.*\(3,\) and \(4,\)"):
        tolerance_of_difference(torch.zeros(3), torch.zeros(4))


@pytest.mark.parametrize("what", ["macs", "params"])
@pytest.mark.parametrize("share", SHARES)
def test_tolerance_meets_every_budget_within_a_point(share: float, what: str) -> None:
    groups, costs = resnet20()
    removal, protection = agreeing(groups)
    found = tolerance_allocation(groups, removal, protection, budget=Budget(**{what: share}), costs=costs)
    assert share <= share_gone(resnet20(), found.removed, what) < share + 0.01
    assert 0 <= found.tolerance <= 1
    assert 0 <= found.share <= 1
    expected = lowest(groups, removal, gone(found.removed))
    assert all(torch.equal(units, expected[name]) for name, units in found.removed.items())


def test_tolerance_is_about_the_units_that_go_where_strata_take_turns() -> None:
    """The first two removed, one per stratum, are not among the two best protected; the two lowest scores are."""
    moe = Group("moe", "expert", 4, (), multiple=2, strata=2)
    removal, protection = {"moe": torch.tensor([0.0, 1, 3, 2])}, {"moe": torch.tensor([0.0, 9, 8, 1])}
    found = tolerance_allocation([moe], removal, protection, tolerance=0.0)
    assert found.removed["moe"].tolist() == [0, 3]
    costs = CostModel(full=Cost(0, 400), sizes={"moe": 4}, linear={"moe": (0, 100)}, blocks={"moe": ()})
    evidence = tolerance_evidence([moe], removal, protection, found, costs)
    assert evidence["protected_mass"] == {"moe": [0, 0]}
    other = tolerance_evidence([moe], removal, {"moe": torch.tensor([8.0, 0, 9, 1])}, found, costs)
    assert other["protected_mass"] == {"moe": [8, 9]}  # unit 0 goes, and unit 2 is better protected still


@pytest.mark.parametrize("rules", [{}, {"at_least": 4}, {"multiple": 3, "strata": 3}, {"multiple": 2, "at_least": 3}])
def test_kept_by_tolerance_is_what_plans_of_these_tolerances_keep(rules: dict[str, int]) -> None:
    names, generator = ("a", "b"), torch.Generator().manual_seed(0)
    groups = [Group(name, "expert", 12, (), **rules) for name in names]
    low, high = ({name: torch.rand(12, generator=generator) for name in names} for _ in range(2))
    costs = CostModel(Cost(0, 100), dict.fromkeys(names, 12), dict.fromkeys(names, (0, 2)), dict.fromkeys(names, ()))
    found = tolerance_allocation(groups, low, high, tolerance=0.2)
    for tolerance, kept in tolerance_evidence(groups, low, high, found, costs)["kept_by_tolerance"].items():
        removed = tolerance_allocation(groups, low, high, tolerance=float(tolerance)).removed
        assert kept == pytest.approx(1 - sum(gone(removed).values()) / 24)


def test_light_budgets_take_a_share_of_what_tolerance_zero_takes() -> None:
    groups, costs = resnet20()
    removal, protection = agreeing(groups)
    zero = gone(tolerance_allocation(groups, removal, protection, tolerance=0.0).removed)
    found = tolerance_allocation(groups, removal, protection, budget=Budget(macs=0.1), costs=costs)
    assert found.tolerance == 0
    assert 0 < found.share < 1
    for name, count in gone(found.removed).items():
        assert abs(count - found.share * zero[name]) <= 1.5


def test_budgets_lie_between_two_neighbouring_tolerances() -> None:
    groups, costs = resnet20()
    removal, protection = agreeing(groups)
    found = tolerance_allocation(groups, removal, protection, budget=Budget(macs=0.7), costs=costs)
    below, above = (
        tolerance_allocation(groups, removal, protection, tolerance=found.tolerance + shift) for shift in (-1e-7, 1e-7)
    )
    assert share_gone(resnet20(), below.removed, "macs") < 0.7 <= share_gone(resnet20(), above.removed, "macs")
    assert all(len(units) <= len(above.removed[name]) for name, units in found.removed.items())
