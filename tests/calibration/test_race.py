"""Races on held-out samples find the same winners as all samples, with fewer runs."""

from __future__ import annotations

import math

import pytest
import torch
from cases.engine import batches_of, build

from prunerecover.calibration.calibrator import Calibrator
from prunerecover.depth.arguments import DepthConfig
from prunerecover.depth.family.calibrated_sets import CalibratedSets
from prunerecover.depth.family_planner import FamilyPlanner
from prunerecover.model.batches import split_batches
from prunerecover.model.evaluation import evaluating
from prunerecover.plan.budget import Budget
from prunerecover.session.session import Session
from prunerecover.sites.find import find_units

KINDS = ("attention", "mlp", "activation")


def own_cost(_: int, divergence: float) -> tuple[float, ...]:
    return (divergence,)


@pytest.fixture(scope="module")
def calibrator() -> Calibrator:
    model = build("timm")
    with evaluating(model):
        samples = split_batches(batches_of("timm", n=128), torch.device("cpu"))
        return Calibrator(model, samples, find_units(model, kinds=KINDS), "calibrated")


def test_the_cheapest_is_what_all_samples_show(calibrator: Calibrator) -> None:
    with evaluating(calibrator.model):
        fitted = calibrator.score(find_units(calibrator.model, kinds=KINDS))
        stand_ins = {choice.unit: choice.candidate for choice in reversed(fitted.values())}  # in any order of depth
        whole = calibrator.judge(stand_ins)
        found = calibrator.race(stand_ins, [], own_cost)
    best = min(whole, key=lambda name: whole[name])
    assert found[best] == (pytest.approx(whole[best], rel=1e-6), True)
    assert all(divergence >= whole[best] - 1e-9 for divergence, _ in found.values())
    assert all(
        divergence == pytest.approx(whole[name], rel=1e-6) for name, (divergence, exact) in found.items() if exact
    )
    assert not all(exact for _, exact in found.values()), "most are beaten before the end"


def test_what_a_bound_shows_to_be_beaten_is_not_run(calibrator: Calibrator) -> None:
    with evaluating(calibrator.model):
        units = find_units(calibrator.model, kinds=KINDS)
        stand_ins = {choice.unit: choice.candidate for choice in calibrator.score(units).values()}
        whole = calibrator.judge(stand_ins)
        bounds = [whole[unit.name] * (1 - 1e-6) for unit in stand_ins]
        found = calibrator.race(stand_ins, [], own_cost, bounds)
    best = min(whole, key=lambda name: whole[name])
    assert found.pop(best) == (pytest.approx(whole[best], rel=1e-6), True)
    assert set(found.values()) == {(math.inf, False)}


@pytest.mark.slow
@pytest.mark.parametrize("budget", [Budget(remove={"attention": 2, "activation": 2}), Budget(macs=0.3)], ids=str)
def test_a_greedy_search_by_races_finds_the_same_units(budget: Budget, monkeypatch: pytest.MonkeyPatch) -> None:
    def removed() -> dict[str, tuple[str, ...]]:
        planner = FamilyPlanner(Session(build("timm"), batches_of("timm", n=64)), KINDS, DepthConfig())
        return dict(planner.plan(budget).removed)

    raced = removed()
    monkeypatch.setattr(CalibratedSets, "races", lambda *_: False)
    monkeypatch.setattr(CalibratedSets, "race", lambda sets, gone, moves, *_: sets.scores(gone, moves))
    assert raced == removed()
