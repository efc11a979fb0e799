"""Budgets in shares of cost: units that hold others go only where smaller ones would change the output more."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import timm
import torch
from cases.engine import batches_of, build
from cases.sampling import covering, first

from prunerecover import Budget, Plan
from prunerecover.depth.arguments import DepthConfig
from prunerecover.depth.family_planner import FamilyPlanner
from prunerecover.plan.kinds import FAMILY_KINDS
from prunerecover.session.session import Session

KINDS = (
    FAMILY_KINDS,
    ("attention", "mlp", "activation"),
    ("attention", "activation"),
    ("block", "attention", "mlp"),
    ("attention", "mlp"),
)
CASES = covering(("timm", "llama"), ("zero", "calibrated"), (0.15, 0.25, 0.35, 0.45), ("greedy", "joint", "exact"))


def not_behind_its_counts(found: FamilyPlanner, share: float) -> bool:
    """Tell whether a plan for a share is not behind one for as many units of each kind, where that meets the share."""
    by_share = found.plan(Budget(macs=share))
    by_count = found.plan(Budget(remove={kind: len(names) for kind, names in by_share.removed.items()}))
    if found.removed_share(by_count, "macs") < share:
        return True
    return judged(found, by_share, share) <= judged(found, by_count, share) * (1 + 1e-6)


def planner(name: str, kinds: Sequence[str], **arguments: str) -> FamilyPlanner:
    return FamilyPlanner(Session(build(name), batches_of(name)), kinds, DepthConfig(**arguments))


def judged(oracle: FamilyPlanner, plan: Plan, share: float) -> float:
    """Return what a plan costs by the planner's own measure: divergence, times what goes beyond the budget."""
    gone = [unit for unit in oracle.units if unit.name in plan.evidence["divergence"]]
    return oracle.calibrator.choose(gone)[-1].divergence * oracle.removed_share(plan, "macs") / share


@pytest.mark.slow
@pytest.mark.parametrize(("name", "replace", "share", "search"), first(4, CASES))
def test_more_kinds_of_units_never_make_a_plan_worse(name: str, replace: str, share: float, search: str) -> None:
    """All kinds are searched, then no blocks, no MLPs, no activations: the best of all, each found on its own."""
    oracle = planner(name, FAMILY_KINDS, replace=replace, search=search)
    has = {unit.kind for unit in oracle.units}
    offered = dict.fromkeys(tuple(kind for kind in kinds if kind in has) for kinds in KINDS)
    costs = []
    for number, kinds in enumerate(offered):
        found = planner(name, kinds, replace=replace, search=search) if number else oracle
        try:
            plan = found.plan(Budget(macs=share))
        except ValueError:  # so many small units are not there
            continue
        costs.append(judged(oracle, plan, share))
    assert costs[0] == pytest.approx(min(costs))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "replace", "share", "search"), first(3, CASES))
def test_a_share_is_not_behind_the_same_numbers_of_units(name: str, replace: str, share: float, search: str) -> None:
    """A user who is told how many of each kind go cannot ask for them and do better."""
    assert not_behind_its_counts(planner(name, FAMILY_KINDS, replace=replace, search=search), share)


@pytest.mark.slow
def test_small_units_are_not_passed_over_for_those_that_save_more() -> None:
    """A network in which the same numbers of units, searched for as such, are others, and better ones."""
    torch.manual_seed(3)
    sizes = {"depth": 4, "img_size": 32, "embed_dim": 24, "num_heads": 2, "num_classes": 10}
    model = timm.create_model("vit_tiny_patch16_224", **sizes).eval()
    batches = [torch.randn(8, 3, 32, 32) for _ in range(2)]
    found = FamilyPlanner(Session(model, batches), config=DepthConfig())
    assert not_behind_its_counts(found, 0.5)


def test_budgets_in_units_are_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found = planner("timm", FAMILY_KINDS, replace="zero")
    monkeypatch.setattr(found, "_of_fewer_kinds", pytest.fail)
    assert len(found.plan(Budget(remove={"mlp": 1})).edits) == 1
