"""The map of accuracies over both axes, and its picks, against published values and by enumeration."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from cases.maps import GRID, LINE, TABLE, arrays, measured, noisy, polynomial
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure

from prunerecover import MapPoint, fit_map
from prunerecover.boundary.designs import affordable_splits, axes_and_staircase, feasible_splits, spread
from prunerecover.boundary.figure import plot_map
from prunerecover.boundary.gaussian_surface import fit_gaussian
from prunerecover.boundary.map_points import kept_fractions
from prunerecover.boundary.surfaces import fit_polynomial, left_out_errors, monomials, pooled_rmse


def design(points: tuple[MapPoint, ...], degree: int) -> np.ndarray:
    kept = arrays(points)[0]
    return np.stack([kept[:, 0] ** i * kept[:, 1] ** j for i, j in monomials(degree)], axis=1)


# The published table. Numbers: ordinary least squares on the 22 runs at exact fractions n/12.


def test_the_published_table_gives_its_map() -> None:
    fitted = fit_map(TABLE, 12)
    assert fitted.degree == 2
    assert fitted.cv_rmse == pytest.approx(0.5923, abs=5e-5)
    expected = [14.4878, 99.9412, 29.4947, -45.8068, -14.0368, -2.4442]
    assert fitted.coefficients == pytest.approx(expected, abs=1e-3)
    pick = fitted.best(n_keep=16)
    assert (12 - pick.attention, 12 - pick.activation) == (10, 6)
    assert pick.predicted == pytest.approx(fitted.predict(10 / 12, 6 / 12))
    assert pick == fitted.best(n_remove=8) == fitted.best(splits=LINE[::-1])
    assert pick.regret.low == 0 < pick.regret.value < pick.regret.high < 1


def test_degree_4_is_not_determined_by_the_published_table() -> None:
    with pytest.raises(ValueError, match="got 22 runs: degree 4 has rank 14 of 15 coefficients. Add runs that"):
        fit_polynomial(*arrays(TABLE), (4,), 0.5)


def test_the_cubic_of_the_published_table_is_refused_above_dense() -> None:
    terms = design(TABLE, 3)
    theta = np.linalg.lstsq(terms, arrays(TABLE)[1])[0]
    quadratic = fit_map(TABLE, 12)
    cubic = replace(quadratic.surface, exponents=monomials(3), coefficients=tuple(theta), refit=np.linalg.pinv(terms))
    with pytest.raises(ValueError, match="dense model's 81.80%, but got 83.63% predicted for 2 attentions and 8"):
        replace(quadratic, surface=cubic).best(n_keep=14)
    assert quadratic.best(n_keep=14).predicted == pytest.approx(71.62, abs=0.01)


# Polynomials are recovered, left-out errors are those of refits, and undetermined degrees are refused.


@settings(max_examples=30, deadline=None)
@given(theta=st.tuples(*[st.floats(-4, 4)] * 10))
def test_a_noise_free_polynomial_is_recovered(theta: tuple[float, ...]) -> None:
    fitted = fit_map(measured(polynomial(theta, 3), GRID, 4), 4)
    truth = polynomial(theta, 3)
    for m, n in GRID:
        assert fitted.predict(1 - m / 4, 1 - n / 4) == pytest.approx(truth(1 - m / 4, 1 - n / 4), abs=1e-8)


@pytest.mark.parametrize("degree", [1, 2])
def test_leave_two_out_equals_refits(degree: int) -> None:
    points = noisy(axes_and_staircase(12))
    accuracy = arrays(points)[1]
    errors = []
    for pair in combinations(range(len(points)), 2):
        terms = design(points, degree)
        theta = np.linalg.lstsq(np.delete(terms, pair, 0), np.delete(accuracy, pair))[0]
        errors.append(accuracy[list(pair)] - terms[list(pair)] @ theta)
    assert fit_polynomial(*arrays(points), (degree,), 0.5).cv_rmse == pytest.approx(np.sqrt(np.mean(np.square(errors))))


def test_leave_two_out_of_a_gaussian_process_equals_refits() -> None:
    kept, accuracy = arrays(noisy(spread(LINE, 5)))
    errors = []
    for pair in combinations(range(5), 2):
        rest = fit_gaussian(np.delete(kept, pair, 0), np.delete(accuracy, pair), 0.5)
        errors.append(accuracy[list(pair)] - rest.predict(kept[list(pair)]))
    assert fit_gaussian(kept, accuracy, 0.5).cv_rmse == pytest.approx(np.sqrt(np.mean(np.square(errors))), rel=1e-6)


def test_too_few_runs_to_leave_out_have_no_error() -> None:
    assert left_out_errors(np.eye(1), np.zeros(1)) is None
    assert pooled_rmse(None) is None
    for surface in ("parabola", "gaussian_process"):
        assert fit_map(noisy(spread(LINE, 4)), 12, surface=surface).cv_rmse is None
        assert fit_map(noisy(spread(LINE, 5)), 12, surface=surface).cv_rmse is not None


@pytest.mark.parametrize(
    ("splits", "reason"),
    [
        (LINE, "degree 1 has rank 2 of 3 coefficients"),
        (((0, 0), (1, 0), (0, 1)), "degree 1 has less than rank 3 without runs 1 and 2"),
        (((0, 0), *LINE), "degree 1 has less than rank 3 without runs 1 and 2"),
    ],
)
def test_designs_that_determine_no_polynomial_are_refused(splits: tuple[tuple[int, int], ...], reason: str) -> None:
    with pytest.raises(ValueError, match=f"got {len(splits)} runs: {reason}"):
        fit_map(noisy(splits), 12, surface="polynomial")


# Surfaces along one line.


def test_runs_along_a_line_get_a_gaussian_process_and_others_a_polynomial() -> None:
    assert fit_map(noisy(spread(LINE, 4)), 12).degree is None
    assert fit_map(noisy(((0, 0), *spread(LINE, 4))), 12).coefficients is None
    assert fit_map(noisy(affordable_splits(12, 0.03, 0.045, 0.3)), 12).degree is None
    assert fit_map(TABLE, 12).degree is not None


def test_a_parabola_is_recovered_from_three_runs() -> None:
    truth = {split: 75 - 0.25 * (split[0] - 3) ** 2 for split in LINE}
    fitted = fit_map([MapPoint(*split, truth[split]) for split in spread(LINE, 3)], 12, surface="parabola")
    assert fitted.best(n_remove=8).split == (3, 5)
    for m, n in LINE:
        assert fitted.predict(1 - m / 12, 1 - n / 12) == pytest.approx(truth[m, n], abs=1e-9)


@pytest.mark.parametrize("surface", ["parabola", "gaussian_process"])
def test_maps_of_a_line_say_nothing_off_it(surface: str) -> None:
    fitted = fit_map(noisy(spread(LINE, 4)), 12, surface=surface)
    fitted.best(n_remove=9)
    with pytest.raises(ValueError, match="close to the line that was measured, but got kept fractions a=1.000"):
        fitted.best(n_remove=10)
    with pytest.raises(ValueError, match="Measure runs along this budget's line"):
        fitted.predict(1.0, 1.0)


@pytest.mark.parametrize("splits", [((0, 8), (8, 0)), axes_and_staircase(12), ((1, 1), (2, 2), (3, 3))])
def test_a_parabola_needs_three_splits_on_a_falling_line(splits: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(ValueError, match="Expected at least three different splits along the line of one budget"):
        fit_map(noisy(splits), 12, surface="parabola")


def drawn(figure: Figure) -> dict[str, list[list[float]]]:
    return {str(line.get_label()): np.asarray(line.get_xydata()).tolist() for line in figure.axes[0].lines}


def test_the_picture_of_a_line_shows_runs_prediction_pick_and_dense() -> None:
    runs = noisy(((0, 0), *spread(LINE, 4)))
    fitted = fit_map(runs, 12)
    pick = fitted.best(n_remove=8)
    figure = plot_map(fitted, LINE, pick)
    shown = drawn(figure)
    assert shown["runs"] == [[run.attention, run.accuracy] for run in runs[1:]]
    assert shown["pick"] == [[pick.attention, pick.predicted]]
    assert np.array(shown["predicted"])[:, 1] == pytest.approx(fitted.surface.predict(kept_fractions(LINE, (12, 12))))
    assert shown["dense"][0][1] == runs[0].accuracy
    assert figure.get_suptitle().startswith(f"{pick.attention} attentions and {pick.activation} activ")
    with pytest.raises(ValueError, match="Expected at least one feasible split to draw, but got none"):
        plot_map(fitted, [])


# Picks: the best by enumeration, with regret, never above dense.


@settings(max_examples=30, deadline=None)
@given(theta=st.tuples(*[st.floats(-8, 8)] * 6), n=st.integers(0, 8))
def test_best_equals_exhaustive_search(theta: tuple[float, ...], n: int) -> None:
    truth = polynomial(theta, 2)
    fitted = replace(fit_map(measured(truth, GRID, 4), 4), dense=None)
    pick = fitted.best(n_remove=n)
    values = {(m, k): truth(1 - m / 4, 1 - k / 4) for m, k in feasible_splits(4, n_remove=n)}
    assert values[pick.split] == pytest.approx(max(values.values()), abs=1e-7)


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        ({"n_remove": 25}, "Expected a budget between 0 and the 24 units of the model"),
        ({"n_remove": -1}, "Expected a budget between 0 and the 24 units of the model"),
        ({"n_keep": 25}, "Expected a budget between 0 and the 24 units of the model"),
        ({}, "Expected exactly one of n_remove and n_keep, but got n_remove=None"),
        ({"n_remove": 8, "splits": LINE}, "a non-empty list of splits, but got n_remove=8, n_keep=None, 9"),
        ({"splits": []}, "a non-empty list of splits, but got n_remove=None, n_keep=None, 0 splits"),
        ({"splits": [(13, 0)]}, r"within the 12 and 12 units of the model, but got \(13, 0\)"),
    ],
)
def test_exactly_one_feasible_budget_is_taken(budget: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit_map(TABLE, 12).best(**budget)


# Draws of surfaces, and the regret of the pick.


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
def test_every_split_of_a_budget_in_cost_is_predicted_and_the_best_is_picked(surface: str) -> None:
    """Where an attention saves as much as several activations, not all splits are close to a line through three."""
    splits = affordable_splits(12, 0.0544, 0.0213, 0.2211)
    runs = [MapPoint(m, n, 90 - 0.5 * m - n) for m, n in ((0, 11), (2, 6), (5, 0))]
    fitted = fit_map(runs, 12, surface=surface, splits=splits)
    predicted = {(m, n): fitted.predict(1 - m / 12, 1 - n / 12) for m, n in splits}
    assert predicted[fitted.best(splits=splits).split] == pytest.approx(max(predicted.values()))
    with pytest.raises(ValueError, match="Expected splits close to the line"):
        fitted.best(splits=[(0, 0)])


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
