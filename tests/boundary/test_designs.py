"""Feasible splits against enumeration, and the designs against the paper's table."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prunerecover import MapPoint, fit_map
from prunerecover.boundary.designs import (
    Split,
    affordable_splits,
    axes_and_staircase,
    feasible_splits,
    one_type_at_a_time,
    spread,
)
from prunerecover.boundary.next_split import knowledge_gradient, next_split

PAPER_22 = {(0, 0)} | {(n, 0) for n in range(1, 9)} | {(0, n) for n in range(1, 9)}
PAPER_22 |= {(1, 1), (1, 2), (2, 2), (2, 3), (3, 3)}
sizes = st.tuples(st.integers(1, 6), st.integers(1, 6))


@given(layers=sizes, share=st.floats(0, 1))
def test_feasible_splits_equal_enumeration(layers: tuple[int, int], share: float) -> None:
    n = round(share * sum(layers))
    expected = [s for s in product(range(layers[0] + 1), range(layers[1] + 1)) if sum(s) == n]
    assert list(feasible_splits(layers, n_remove=n)) == expected
    assert list(feasible_splits(layers, n_keep=sum(layers) - n)) == expected


@given(layers=sizes, attention=st.floats(0.01, 0.08), activation=st.floats(0.01, 0.08), part=st.floats(0, 1))
def test_affordable_splits_are_the_undominated_ones(
    layers: tuple[int, int], attention: float, activation: float, part: float
) -> None:
    budget = part * (layers[0] * attention + layers[1] * activation)
    every = product(range(layers[0] + 1), range(layers[1] + 1))
    enough = [(m, n) for m, n in every if m * attention + n * activation >= budget - 1e-9]
    undominated = [s for s in enough if not any(o != s and o[0] <= s[0] and o[1] <= s[1] for o in enough)]
    assert list(affordable_splits(layers, attention, activation, budget)) == undominated


@given(n=st.integers(1, 24), runs=st.integers(2, 30))
def test_spread_takes_the_ends_and_even_steps(n: int, runs: int) -> None:
    splits = feasible_splits(12, n_remove=n)
    chosen = [splits.index(split) for split in spread(splits, runs)]
    assert len(chosen) == min(runs, len(splits))
    assert {chosen[0], chosen[-1]} == {0, len(splits) - 1}
    steps = [later - earlier for earlier, later in pairwise(chosen)]
    assert not steps or max(steps) - min(steps) <= 1


def test_the_papers_design_is_its_22_runs() -> None:
    runs = axes_and_staircase(12)
    assert len(runs) == 22
    assert set(runs) == PAPER_22


def test_algorithm_1_takes_one_type_at_a_time() -> None:
    assert one_type_at_a_time((2, 3), 3) == ((0, 0), (1, 0), (2, 0), (0, 1), (0, 2), (0, 3))


@pytest.mark.parametrize("design", [one_type_at_a_time, axes_and_staircase])
def test_designs_stay_within_the_model(design: Callable[[int, int], tuple[Split, ...]]) -> None:
    assert all(m <= 4 and n <= 4 for m, n in design(4, 8))


SPLITS = feasible_splits(12, n_remove=8)


def hill(split: tuple[int, int]) -> MapPoint:
    return MapPoint(*split, 75.0 - 0.3 * (split[0] - 3) ** 2)


def test_the_first_three_runs_are_spread() -> None:
    runs: list[MapPoint] = [MapPoint(0, 0, 81.8)]
    for expected in spread(SPLITS, 3):
        assert next_split(runs, SPLITS, 12) == expected
        runs.append(hill(expected))
    assert next_split(runs, SPLITS, 12) not in spread(SPLITS, 3)


def test_further_runs_close_in_on_the_top() -> None:
    runs: list[MapPoint] = []
    while len(runs) < 6:
        runs.append(hill(next_split(runs, SPLITS, 12)))
    assert all(abs(run.attention - 3) <= 2 for run in runs[3:])
    assert fit_map(runs, 12).best(n_remove=8).split == (3, 5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (partial(feasible_splits, (12, 0), n_remove=1), r"one attention and one activation unit, .*layers=\(12, 0\)"),
        (partial(affordable_splits, 4, 0.05, 0.1, 0.7), "Expected a budget between 0 and 0.600, .* but got 0.7"),
        (partial(affordable_splits, 4, 0.05, 0.0, 0.1), "Expected activation_share between 0 and 1"),
        (partial(affordable_splits, 4, 0.05, 1.0, 0.1), "Expected activation_share between 0 and 1"),
        (partial(affordable_splits, 4, -0.1, 0.05, 0.1), "Expected attention_share between 0 and 1"),
        (partial(spread, (), 3), "Expected at least one split and two runs, but got 0 splits"),
        (partial(spread, ((0, 1), (1, 0)), 1), "Expected at least one split and two runs"),
        (partial(one_type_at_a_time, 4, 9), "Expected n_remove between 0 and the 8 units of the model, but got 9"),
        (partial(axes_and_staircase, 4, 9), "Expected n_remove between 0 and the 8 units of the model, but got 9"),
        (partial(next_split, [], SPLITS, 4), r"within the 4 and 4 units of the model, but got \(0, 8\)"),
        (partial(next_split, [], [], 4), "Expected at least one split and two runs, but got 0 splits"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_knowledge_gradient_equals_simulation() -> None:
    rng = np.random.default_rng(5)
    root = rng.normal(size=(4, 4))
    mean, covariance = np.array([0.0, 0.3, 0.5, 0.2]), root @ root.T
    found = knowledge_gradient(mean, covariance, noise=0.5)
    for i in range(4):
        moves = covariance[:, i] / np.sqrt(covariance[i, i] + 0.25)
        simulated = (mean[:, None] + moves[:, None] * rng.standard_normal(400_000)).max(axis=0).mean() - mean.max()
        assert found[i] == pytest.approx(simulated, rel=0.05)
