"""Plans are made again until measured shares meet the budget, with as many pairs of timings as needed."""

from __future__ import annotations

import math
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from prunerecover.cost.met_share import TRIES, BudgetMissed, Shares, Wanted, met_share
from prunerecover.cost.statistics import Interval
from prunerecover.model.batches import as_inputs
from prunerecover.surgery import saved_cost
from prunerecover.surgery.saved_cost import FEW, PAIRS, TIMED, DenseCost

LATENCY = {"latency": Wanted(0.3, below=0.01, above=0.01)}


def test_what_is_met_at_once_is_measured_once() -> None:
    shown = iter([0.3])
    found = met_share(LATENCY, lambda asked: asked["latency"], lambda _: {"latency": next(shown)})
    assert found == (0.3, {"latency": 0.3})


@pytest.mark.parametrize("efficiency", [0.5, 0.8, 1.3])
def test_the_share_that_is_asked_for_follows_what_was_measured(efficiency: float) -> None:
    _, saved = met_share(LATENCY, lambda asked: asked["latency"], lambda planned: {"latency": efficiency * planned})
    assert saved == {"latency": pytest.approx(0.3)}


def test_of_what_saves_enough_the_least_is_taken() -> None:
    """Units are large: shares of 0.1 save half as much again."""

    def in_units(asked: Shares) -> int:
        return math.ceil(10 * asked["macs"] - 1e-9)

    planned, saved = met_share({"macs": Wanted(0.3, above=0.0)}, in_units, lambda units: {"macs": 0.15 * units})
    assert (planned, saved) == (2, {"macs": pytest.approx(0.3)})


def test_the_nearest_wins_whenever_it_was_tried() -> None:
    """The clock shows another value each time; a plan that misses the budget does not count, however near."""
    shown = iter([0.34, 0.36, 0.295, 0.33])
    with pytest.warns(BudgetMissed, match="saves 33.0% of the latency"):
        planned, saved = met_share(
            {"latency": Wanted(0.3, above=0.01)}, lambda _: object(), lambda _: {"latency": next(shown)}, tries=4
        )
    assert saved == {"latency": 0.33}
    assert next(shown, None) is None
    assert planned is not None


def test_a_share_that_is_not_met_is_told() -> None:
    tried: list[float] = []

    def plan(asked: Shares) -> int:
        tried.append(asked["latency"])
        return len(tried)

    said = (
        "The plan saves 20.0% of the latency for a budget of 30.0%, and what was planned for more saves no more. "
        "Is the machine busy"
    )
    with pytest.warns(BudgetMissed, match=said):
        planned, saved = met_share(LATENCY, plan, lambda _: {"latency": 0.2})
    assert (planned, saved) == (1, {"latency": 0.2})
    assert len(tried) == TRIES


@pytest.mark.parametrize(("saved", "told"), [(0.319, False), (0.321, True), (0.6, True)])
def test_more_than_two_points_too_much_are_told(saved: float, told: bool) -> None:
    """Whether or not less was planned for."""
    for above in (0.0, math.inf):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert met_share({"macs": Wanted(0.3, above=above)}, lambda _: 1, lambda _: {"macs": saved})[0] == 1
        assert len(caught) == told
        said = f"The plan saves {saved:.1%} of the macs for a budget of 30.0%, and nothing nearer that meets it"
        assert not told or str(caught[0].message).startswith(said)


def test_what_is_refused_at_once_raises_and_later_ends_the_search() -> None:
    def refused(asked: Shares) -> float:
        raise ValueError("so much cannot go")

    def at_most(asked: Shares) -> float:
        return asked["latency"] if asked["latency"] <= 0.3 else refused(asked)

    with pytest.raises(ValueError, match="so much cannot go"):
        met_share(LATENCY, refused, lambda planned: {"latency": planned})
    with pytest.warns(BudgetMissed, match=r"The plan saves 15.0%"):
        assert met_share(LATENCY, at_most, lambda planned: {"latency": planned / 2}) == (0.3, {"latency": 0.15})


def test_of_several_costs_only_the_one_that_is_missed_is_asked_for_again() -> None:
    """The MACs are met at once; the latency saves 0.75 of the request."""
    wanted = {"macs": Wanted(0.2, above=0.01), "latency": Wanted(0.3, below=0.01)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        planned, saved = met_share(
            wanted, dict, lambda asked: {"macs": asked["macs"], "latency": 0.75 * asked["latency"]}
        )
    assert planned == pytest.approx({"macs": 0.2, "latency": 0.4})
    assert saved == pytest.approx({"macs": 0.2, "latency": 0.3})


def test_less_is_planned_for_where_every_cost_is_exceeded() -> None:
    wanted = {"macs": Wanted(0.2, above=0.01), "params": Wanted(0.1, above=0.01)}
    planned, saved = met_share(wanted, dict, lambda asked: {"macs": 1.5 * asked["macs"], "params": 2 * asked["params"]})
    assert saved == pytest.approx({"macs": 0.2, "params": 0.2 * 2 / 3})
    assert planned == pytest.approx({"macs": 0.2 * 2 / 3, "params": 0.1 * 2 / 3})


def clocked(monkeypatch: pytest.MonkeyPatch, few: Interval, many: Interval) -> list[int]:
    """Return the numbers of pairs asked of a clock from now on, which shows one ratio with few, another with many."""
    asked: list[int] = []

    def clock(*_: Any, pairs: int, **__: Any) -> Any:
        asked.append(pairs)
        return SimpleNamespace(ratio=few if pairs < PAIRS else many)

    monkeypatch.setattr(saved_cost, "latency_ratio", clock)
    return asked


def cost_of(inputs: Any, cost: str = "latency", device: str = "cpu") -> DenseCost:
    return DenseCost(nn.Linear(2, 2, device=device), cost, as_inputs(inputs))


@pytest.mark.parametrize(
    ("wanted", "asked", "saved"),
    [(None, [PAIRS], 0.30), (0.30, [FEW, PAIRS], 0.30), (0.27, [FEW, PAIRS], 0.30), (0.20, [FEW], 0.28)],
)
def test_few_pairs_are_enough_for_what_is_clearly_more_or_less(
    wanted: float | None, asked: list[int], saved: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock saves 30% in the median, and a little less with few pairs."""
    pairs = clocked(monkeypatch, Interval(0.72, 0.66, 0.75), Interval(0.70, 0.69, 0.71))
    assert cost_of(torch.ones(1, 2)).removed_share([], wanted=wanted) == pytest.approx(saved)
    assert pairs == asked


@pytest.mark.parametrize(("spread", "asked"), [(0.009, [FEW]), (0.011, [FEW, PAIRS])])
def test_few_pairs_are_enough_if_they_agree(spread: float, asked: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = clocked(monkeypatch, *[Interval(0.7, 0.7, 0.7 + spread)] * 2)
    assert cost_of(torch.ones(1, 2)).removed_share([], wanted=0.3) == pytest.approx(0.3)
    assert pairs == asked


def test_what_is_counted_needs_no_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = clocked(monkeypatch, *[Interval(0.7, 0.7, 0.7)] * 2)
    assert cost_of(torch.ones(1, 2), "params").removed_share([], wanted=0.3) == 0.0
    assert not pairs


def test_few_samples_are_the_first_ones_and_other_devices_are_timed_on_all() -> None:
    cost = cost_of(torch.arange(3.0 * TIMED))
    few = cost.on_few
    assert few.example.args[0].tolist() == list(range(TIMED))
    assert (few.model, few.cost) == (cost.model, cost.cost)
    assert few.on_few is few
    elsewhere = cost_of(torch.arange(3.0 * TIMED), device="meta")
    assert elsewhere.on_few is elsewhere
