"""The map of accuracies over both axes against published values, with a figure."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from cases.maps import GRID, LINE, TABLE, arrays, measured, noisy, polynomial
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure

from prunerecover import MapPoint, fit_map
from prunerecover.boundary.designs import affordable_splits, axes_and_staircase, spread
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


# T2: polynomials are recovered, left-out errors are those of refits, and undetermined degrees are refused.


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


# T3: a bias shared by all runs changes nothing; a bias that grows with the removals of a type moves the pick.


def test_a_constant_bias_moves_the_intercept_only() -> None:
    fitted = fit_map(TABLE, 12)
    biased = fit_map([replace(point, accuracy=point.accuracy - 7) for point in TABLE], 12)
    assert fitted.coefficients is not None
    assert biased.coefficients is not None
    assert biased.coefficients[0] == pytest.approx(fitted.coefficients[0] - 7)
    assert biased.coefficients[1:] == pytest.approx(fitted.coefficients[1:])
    for n in range(25):
        assert biased.best(n_remove=n).split == fitted.best(n_remove=n).split
        assert biased.best(n_remove=n).regret.value == pytest.approx(fitted.best(n_remove=n).regret.value)


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


def test_a_picture_needs_splits() -> None:
    with pytest.raises(ValueError, match="Expected at least one feasible split to draw, but got none"):
        plot_map(fit_map(TABLE, 12), [])
