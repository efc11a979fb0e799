"""Picks of an accuracy map: the best by enumeration, with regret, never above dense; bad arguments."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cases.maps import GRID, LINE, TABLE, arrays, measured, noisy, polynomial
from hypothesis import given, settings
from hypothesis import strategies as st

from prunerecover import MapPoint, fit_map
from prunerecover.boundary.designs import affordable_splits, feasible_splits, spread
from prunerecover.boundary.gaussian_surface import fit_gaussian
from prunerecover.boundary.surfaces import fit_polynomial

# T1: the domain is finite, so the best is the best of an enumeration.


@settings(max_examples=30, deadline=None)
@given(theta=st.tuples(*[st.floats(-8, 8)] * 6), n=st.integers(0, 8))
def test_best_equals_exhaustive_search(theta: tuple[float, ...], n: int) -> None:
    truth = polynomial(theta, 2)
    fitted = replace(fit_map(measured(truth, GRID, 4), 4), dense=None)
    pick = fitted.best(n_remove=n)
    values = {(m, k): truth(1 - m / 4, 1 - k / 4) for m, k in feasible_splits(4, n_remove=n)}
    assert values[pick.split] == pytest.approx(max(values.values()), abs=1e-7)


@pytest.mark.parametrize("budget", [{"n_remove": 25}, {"n_remove": -1}, {"n_keep": 25}])
def test_infeasible_budgets_are_refused(budget: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="Expected a budget between 0 and the 24 units of the model"):
        fit_map(TABLE, 12).best(**budget)


def test_exactly_one_budget_is_taken() -> None:
    fitted = fit_map(TABLE, 12)
    with pytest.raises(ValueError, match="Expected exactly one of n_remove and n_keep, but got n_remove=None"):
        fitted.best()
    with pytest.raises(ValueError, match=r"n_keep and a non-empty list of splits, but got n_remove=8, n_keep=None, 9"):
        fitted.best(n_remove=8, splits=LINE)
    with pytest.raises(ValueError, match="a non-empty list of splits, but got n_remove=None, n_keep=None, 0 splits"):
        fitted.best(splits=[])
    with pytest.raises(ValueError, match=r"within the 12 and 12 units of the model, but got \(13, 0\)"):
        fitted.best(splits=[(13, 0)])


def test_budgets_in_cost_are_lists_of_splits() -> None:
    fitted = fit_map(TABLE, 12)
    splits = affordable_splits(12, attention_share=0.03, activation_share=0.045, budget=0.3)
    pick = fitted.best(splits=splits)
    predicted = {split: fitted.predict(1 - split[0] / 12, 1 - split[1] / 12) for split in splits}
    assert pick.split == max(predicted, key=lambda split: predicted[split])


# Budgets of the pick.


def test_draws_of_a_polynomial_are_refits() -> None:
    kept, accuracy = arrays(TABLE)
    surface = fit_polynomial(kept, accuracy, (2,), noise=0.5)
    noise = surface.sigma * np.random.default_rng(3).standard_normal((4, 22))
    refits = [fit_polynomial(kept, surface.predict(kept) + row, (2,), noise=0.5).predict(kept) for row in noise]
    assert surface.draw(kept, 4, np.random.default_rng(3)) == pytest.approx(np.array(refits))


def test_draws_of_a_gaussian_process_have_its_mean_and_covariance() -> None:
    kept, accuracy = arrays(noisy(spread(LINE, 4)))
    surface = fit_gaussian(kept, accuracy, 0.5)
    mean, covariance = surface.posterior(kept)
    drawn = surface.draw(kept, 40_000, np.random.default_rng(0))
    assert drawn.mean(axis=0) == pytest.approx(mean, abs=0.02)
    assert np.cov(drawn.T) == pytest.approx(covariance, abs=0.02)


def test_known_noise_is_a_floor_where_residuals_say_nothing() -> None:
    runs = [MapPoint(*split, 75 - 0.25 * (split[0] - 3) ** 2) for split in spread(LINE, 3)]
    quiet, loud = (fit_map(runs, 12, surface="parabola", noise=n).best(n_remove=8).regret for n in (0.05, 1.0))
    assert 0 == quiet.low <= quiet.high < loud.value < loud.high


def test_the_regret_interval_reaches_the_true_regret() -> None:
    true = np.array([80 - m - n - 0.2 * m * m for m, n in LINE])
    reached = []
    for seed in range(60):
        pick = fit_map(noisy(spread(LINE, 5), seed), 12).best(n_remove=8)
        reached.append(true.max() - true[pick.attention] <= pick.regret.high)
    assert np.mean(reached) >= 0.9


# The dense model.


def test_dense_is_taken_from_the_runs_or_the_argument() -> None:
    assert fit_map(TABLE, 12).dense == 81.80
    assert fit_map(TABLE[1:], 12).dense is None
    assert fit_map(TABLE[1:], 12, dense=81.8).dense == 81.8


# Budgets whose splits are not exactly on a line.


@pytest.mark.parametrize("surface", ["gaussian_process", "parabola"])
def test_every_split_of_a_budget_in_cost_is_predicted(surface: str) -> None:
    """Where an attention saves as much as several activations, not all splits are close to a line through three."""
    splits = affordable_splits(12, 0.0544, 0.0213, 0.2211)
    runs = [MapPoint(m, n, 90 - 0.5 * m - n) for m, n in ((0, 11), (2, 6), (5, 0))]
    assert fit_map(runs, 12, surface=surface, splits=splits).best(splits=splits).split in splits
    with pytest.raises(ValueError, match="Expected splits close to the line"):
        fit_map(runs, 12, surface=surface, splits=splits).best(splits=[(0, 0)])


# Arguments.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"points": []}, "Expected at least one run, but got none"),
        ({"points": [MapPoint(5, 0, 70.0)], "layers": 4}, r"within the 4 and 4 units of the model, but got \(5, 0\)"),
        ({"points": [MapPoint(1, 0, 0.7)]}, "Expected accuracies in percent, but got none above 1"),
        ({"surface": "spline"}, "a surface among polynomial, gaussian_process, parabola or None, but got 'spline'"),
        ({"noise": 0.0}, "Expected a noise above 0 points, but got 0.0"),
        ({"layers": 0}, "Expected at least one attention and one activation unit, but got layers=0"),
    ],
)
def test_arguments_are_checked(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit_map(**{"points": TABLE, "layers": 12, **arguments})


@pytest.mark.parametrize("numbers", [(-1, 0, 70.0), (0, 0, 101.0), (0, 0, float("nan"))])
def test_points_are_checked(numbers: tuple[int, int, float]) -> None:
    with pytest.raises(ValueError, match="Expected numbers removed >= 0 and an accuracy between 0 and 100 percent"):
        MapPoint(*numbers)


@pytest.mark.parametrize("kept", [(1.1, 0.5), (0.5, -0.1)])
def test_predictions_are_for_fractions(kept: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="Expected kept fractions between 0 and 1"):
        fit_map(TABLE, 12).predict(*kept)
