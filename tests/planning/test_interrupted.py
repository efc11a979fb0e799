"""Interrupted or killed joint planning continues after its last result, with the same plan."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cases.depth.clock import counts_parameters
from cases.depth.interrupted import Interrupts
from cases.files.kills import killed_at_rename
from cases.planning.networks import Residual, cnn, images, vit
from torch import nn

from prunerecover import Budget, Plan, frontier, plan_pruning
from prunerecover.cost.statistics import Interval
from prunerecover.library.scoring import Scorer
from prunerecover.store.search_store import results_in
from prunerecover.surgery import saved_cost

pytestmark = pytest.mark.slow
HALF = Budget(macs=0.5)


def block() -> nn.Module:
    """Return a network with BatchNorm, for which joint, width and depth plans are compared after reconstruction."""
    torch.manual_seed(0)
    body = (nn.Conv2d(3, 8, 3, padding=1), Residual(8), Residual(8), nn.AdaptiveAvgPool2d(1))
    return nn.Sequential(*body, nn.Flatten(), nn.Linear(8, 4)).eval()


def small() -> nn.Module:
    return vit(depth=2)


def planned(model: nn.Module, budget: Budget = HALF, **how: Any) -> Plan:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return plan_pruning(model, budget, batches=images(6), **how)


def same(one: Plan, other: Plan) -> bool:
    return one == other and all(torch.equal(value, other.tensors[name]) for name, value in one.tensors.items())


@pytest.fixture
def interrupts(monkeypatch: pytest.MonkeyPatch) -> Interrupts:
    return Interrupts(monkeypatch)


@pytest.mark.parametrize(("build", "parts"), [(small, (0.0, 1.0)), (block, (0.5,))])
def test_it_goes_on_behind_the_last_result(
    build: Callable[[], nn.Module],
    parts: Sequence[float],
    tmp_path: Path,
    interrupts: Interrupts,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "prunerecover")
    whole = planned(build())
    interrupts.begin()
    assert same(planned(build(), store=tmp_path / "whole"), whole)
    results = interrupts.computed
    assert results > 20
    for done in (1 + int(part * (results - 2)) for part in parts):
        store = tmp_path / f"interrupted_{done}"
        interrupts.begin(done)
        with pytest.raises(KeyboardInterrupt):
            planned(build(), store=store)
        assert caplog.messages[-1].startswith(f"prunerecover: interrupted, with {results_in(store)} result")
        assert caplog.messages[-1].endswith(f" in {store}. Run this again to go on.")
        interrupts.begin()
        assert same(planned(build(), store=store), whole)
        assert interrupts.computed == results - done


def test_another_budget_finds_the_variants_scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[int] = []
    divergence = Scorer.divergence
    monkeypatch.setattr(Scorer, "divergence", lambda *own: judged.append(1) or divergence(*own))
    planned(small(), store=tmp_path)
    first = len(judged)
    judged.clear()
    planned(small(), store=tmp_path)
    assert not judged
    third = planned(small(), Budget(macs=0.3), store=tmp_path)
    more = len(judged)
    judged.clear()
    assert same(planned(small(), Budget(macs=0.3)), third)
    assert 0 < more < len(judged)
    assert more < first


def test_a_latency_is_not_measured_again(
    tmp_path: Path, interrupts: Interrupts, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed, budget = counts_parameters(monkeypatch), Budget(latency=0.3)
    interrupts.begin()
    planned(small(), budget, store=tmp_path / "whole")
    results = interrupts.computed
    interrupts.begin(results - 2)
    with pytest.raises(KeyboardInterrupt):
        planned(small(), budget, store=tmp_path / "stopped")
    before = len(timed)
    interrupts.begin()
    whole = planned(small(), budget, store=tmp_path / "stopped")
    assert interrupts.computed == 2
    assert len(timed) - before <= 2
    half = SimpleNamespace(ratio=Interval(0.5, 0.5, 0.5, 0.95), pairs=4, batch_size=8)
    monkeypatch.setattr(saved_cost, "latency_ratio", lambda *_, **__: half)  # another clock would decide otherwise
    interrupts.begin()
    assert same(planned(small(), budget, store=tmp_path / "stopped"), whole)
    assert interrupts.computed == 0


def test_damaged_results_are_found_anew(tmp_path: Path, interrupts: Interrupts) -> None:
    whole = planned(small(), store=tmp_path)
    files = sorted(tmp_path.iterdir())
    for file in files[::3]:
        file.write_bytes(file.read_bytes()[:-40])
    interrupts.begin()
    with pytest.warns(UserWarning, match=r"is damaged .* Its result is found anew"):
        assert same(plan_pruning(small(), HALF, batches=images(6), store=tmp_path), whole)
    assert interrupts.computed == len(files[::3])


@pytest.mark.parametrize("number", [0, 20])
def test_killed_while_it_writes_a_result_it_goes_on(number: int, tmp_path: Path, interrupts: Interrupts) -> None:
    whole = planned(small())
    assert killed_at_rename(number, lambda: planned(small(), store=tmp_path))
    assert results_in(tmp_path) == number
    interrupts.begin()
    assert same(planned(small(), store=tmp_path), whole)
    assert results_in(tmp_path) == interrupts.computed + number


def test_warnings_of_plans_that_are_found_are_said_again(tmp_path: Path) -> None:
    said = []
    for _ in range(2):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            plan_pruning(cnn(), Budget(macs=0.3), batches=images(), store=tmp_path)
        said.append([(one.category, str(one.message)) for one in caught])
    assert said[0]
    assert said[0] == said[1]


def test_a_frontier_goes_on_and_its_plans_too(tmp_path: Path, interrupts: Interrupts) -> None:
    shares = (0.2, 0.5)
    whole = frontier(small(), batches=images(6), shares=shares)
    interrupts.begin(20)
    with pytest.raises(KeyboardInterrupt):
        frontier(small(), batches=images(6), shares=shares, store=tmp_path)
    interrupts.begin()
    again = frontier(small(), batches=images(6), shares=shares, store=tmp_path)
    assert again.points == whole.points
    plan = whole.plan(0.5)
    assert same(again.plan(0.5), plan)
    interrupts.begin()
    assert same(planned(small(), store=tmp_path), plan)
    assert interrupts.computed < results_in(tmp_path) / 2, "choices with the scores measured for one budget alone"


def test_a_store_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a_file").touch()
    with pytest.raises(ValueError, match=r"Expected argument store to be a folder .* but .*a_file is a file"):
        planned(small(), store=tmp_path / "a_file")
