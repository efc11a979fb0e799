"""The tolerance of difference as an allocation: by the book without a budget, and within a point of any budget."""

from __future__ import annotations

import pytest
import torch
from cases.width.allocations import SHARES, agreeing, gone, resnet20, share_gone
from cases.width.scores import removable

from prunerecover.plan.budget import Budget
from prunerecover.plan.groups import Group
from prunerecover.width.allocation.by_importance import lowest
from prunerecover.width.allocation.cost_model import Cost, CostModel
from prunerecover.width.allocation.diagnostics import tolerance_evidence
from prunerecover.width.allocation.tolerance_allocation import tolerance_allocation


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


@pytest.mark.parametrize("tolerance", [0.0, 0.2, 0.5])
def test_tolerance_by_the_book_is_removable_of_every_group(tolerance: float) -> None:
    groups, _ = resnet20()
    removal, protection = agreeing(groups)
    found = tolerance_allocation(groups, removal, protection, tolerance=tolerance)
    expected = {g.name: removable(removal[g.name], protection[g.name], tolerance) for g in groups}
    assert gone(found.removed) == expected
    assert (found.tolerance, found.share) == (tolerance, 1.0)


def test_tolerance_is_about_the_units_that_go_where_strata_take_turns() -> None:
    """The first two to go, one per stratum, are none of the two best protected; the two lowest scores are."""
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
