"""Latency that edits save is measured with as many pairs as it takes to tell whether it is what is wanted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cases.engine import batches_of, build

from prunerecover.cost.statistics import Interval
from prunerecover.model.batches import as_inputs
from prunerecover.surgery import saved_cost
from prunerecover.surgery.saved_cost import FEW, PAIRS, TIMED, DenseCost


@pytest.fixture
def pairs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A clock that shows 30% less in the median, and somewhat other medians with few pairs; what was asked of it."""
    asked: list[int] = []

    def clock(*_: Any, pairs: int, **__: Any) -> Any:
        asked.append(pairs)
        few = pairs < PAIRS
        return SimpleNamespace(ratio=Interval(0.72, 0.66, 0.75) if few else Interval(0.70, 0.69, 0.71))

    monkeypatch.setattr(saved_cost, "latency_ratio", clock)
    return asked


@pytest.mark.parametrize(
    ("wanted", "asked", "saved"),
    [(None, [FEW, PAIRS], 0.30), (0.30, [FEW, PAIRS], 0.30), (0.27, [FEW, PAIRS], 0.30), (0.20, [FEW], 0.28)],
)
def test_few_pairs_are_enough_for_what_is_clearly_more_or_less(
    wanted: float | None, asked: list[int], saved: float, pairs: list[int]
) -> None:
    cost = DenseCost(build("timm"), "latency", as_inputs(batches_of("timm")[0]))
    assert cost.removed_share([], wanted=wanted) == pytest.approx(saved)
    assert pairs == asked


@pytest.mark.parametrize(("spread", "asked"), [(0.009, [FEW]), (0.011, [FEW, PAIRS])])
def test_few_pairs_are_enough_if_they_agree(spread: float, asked: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def clock(*_: Any, pairs: int, **__: Any) -> Any:
        seen.append(pairs)
        return SimpleNamespace(ratio=Interval(0.7, 0.7, 0.7 + spread))

    monkeypatch.setattr(saved_cost, "latency_ratio", clock)
    cost = DenseCost(build("timm"), "latency", as_inputs(batches_of("timm")[0]))
    assert cost.removed_share([], wanted=0.3) == pytest.approx(0.3)
    assert seen == asked


def test_few_samples_are_the_first_ones() -> None:
    cost = DenseCost(build("timm"), "latency", as_inputs(torch.arange(20.0)))
    few = cost.on_few
    assert few.example.args[0].tolist() == list(range(TIMED))
    assert (few.model, few.cost) == (cost.model, cost.cost)
    assert few.on_few is few


def test_other_devices_are_timed_on_all_samples() -> None:
    cost = DenseCost(build("timm").to("meta"), "latency", as_inputs(torch.arange(20.0)))
    assert cost.on_few is cost


def test_what_is_counted_needs_no_pairs(pairs: list[int]) -> None:
    model = build("timm")
    cost = DenseCost(model, "params", as_inputs(batches_of("timm")[0]))
    assert cost.removed_share([], wanted=0.3) == 0.0
    assert not pairs
