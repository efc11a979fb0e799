"""Intervals against scipy and closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from prunerecover.cost.statistics import (
    LEAST,
    Interval,
    is_share,
    mean_interval,
    median_interval,
    paired_difference,
    wilson_interval,
)


@pytest.mark.parametrize(("correct", "total"), [(81, 263), (15, 148), (0, 20), (29, 29), (372, 400)])
def test_wilson_equals_scipys(correct: int, total: int) -> None:
    found, oracle = wilson_interval(correct, total), stats.binomtest(correct, total).proportion_ci(method="wilson")
    assert [found.low, found.high] == pytest.approx([oracle.low, oracle.high], rel=1e-9, abs=1e-12)
    assert found.value == correct / total


@pytest.mark.parametrize(("correct", "total"), [(0, 0), (-1, 5), (6, 5)])
def test_wilson_refuses_impossible_counts(correct: int, total: int) -> None:
    with pytest.raises(ValueError, match="Expected 0 <= correct <= total with at least one sample"):
        wilson_interval(correct, total)


def correctness() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(7)
    before = (rng.random(600) < 0.8).astype(float)
    flipped = rng.random(600) < 0.15
    return before, np.where(flipped, 1 - before, before)


def test_paired_difference_equals_scipys_bootstrap() -> None:
    before, after = correctness()
    found = paired_difference(before, after)
    oracle = stats.bootstrap((after - before,), np.mean, n_resamples=20_000, method="percentile", batch=1000)
    ends = oracle.confidence_interval
    assert found.value == pytest.approx(float((after - before).mean()))
    assert [found.low, found.high] == pytest.approx([ends.low, ends.high], abs=2e-3)


def test_seed_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prunerecover.cost.statistics.RESAMPLES", 100)
    before, after = correctness()
    first, again, other = (paired_difference(before, after, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_median_equals_scipys_bootstrap() -> None:
    values = np.random.default_rng(5).lognormal(0, 0.2, 30)
    found = median_interval(values)
    oracle = stats.bootstrap((values,), np.median, n_resamples=20_000, method="percentile").confidence_interval
    assert found.value == np.median(values)
    assert [found.low, found.high] == pytest.approx([oracle.low, oracle.high], abs=0.02)


@pytest.mark.parametrize("recurring", [False, True])
def test_long_vectors_are_drawn_in_chunks(recurring: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).normal(size=50)
    values = values.round() if recurring else values
    whole_median, whole_mean = median_interval(values), mean_interval(values)
    monkeypatch.setattr("prunerecover.cost.statistics.CHUNK", 64)
    assert median_interval(values).low == pytest.approx(whole_median.low, abs=0.05)
    chunked_mean = mean_interval(values)
    assert (chunked_mean.low, chunked_mean.high) == pytest.approx((whole_mean.low, whole_mean.high))


def test_too_few_values_give_their_range() -> None:
    """The range of n values misses their law's median with probability 2 ** (1 - n): 5 values miss 95%, 6 reach it."""
    assert median_interval([2.5]) == mean_interval([2.5]) == Interval(2.5, 2.5, 2.5, None)
    assert paired_difference([0.0] * 5, [1.0, 5.0, 3.0, 2.0, 2.0]) == Interval(2.6, 1.0, 5.0, None)
    assert [n for n in range(1, 12) if 0.5 ** (n - 1) > 0.05] == [*range(1, LEAST)]
    assert median_interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).confidence == 0.95
    assert mean_interval([1, 0]).confidence == 0.95  # Wilson's interval holds at any number


def test_drawing_counts_equals_drawing_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recurring values take the fast way."""
    rng = np.random.default_rng(2)
    values = rng.normal(size=5)[rng.integers(0, 5, 400)]
    quick = mean_interval(values)
    monkeypatch.setattr("prunerecover.cost.statistics.RECURRING", len(values))
    drawn = mean_interval(values)
    assert quick != drawn
    assert [quick.low, quick.high] == pytest.approx([drawn.low, drawn.high], abs=0.02)


def test_mean_of_zeros_and_ones_gets_wilson() -> None:
    assert mean_interval([1, 0, 1, 1]) == wilson_interval(3, 4)
    assert is_share([0, 1, 1])
    assert not is_share([0, 0.5])


@pytest.mark.parametrize("scores", [[], [1.0, math.nan], [[1.0], [2.0]]], ids=["empty", "nan", "matrix"])
def test_what_is_no_vector_of_numbers_is_refused(scores: list[float]) -> None:
    with pytest.raises(ValueError, match="Expected a non-empty vector of finite scores"):
        mean_interval(scores)


def test_unequal_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="Expected scores of the same samples, but got 2 before and 3 after"):
        paired_difference([0, 1], [0, 1, 1])
