"""Predictions from moments equal regressions on the rows themselves."""

from __future__ import annotations

import pytest
import torch
from sklearn.linear_model import Ridge

from prunerecover.calibration.moments import RIDGE, Moments

KEPT, GONE = torch.tensor([0, 2, 3]), torch.tensor([1, 4])
ROWS = torch.randn(300, 5, generator=torch.Generator().manual_seed(0)) @ torch.randn(
    5, 5, generator=torch.Generator().manual_seed(1)
) + torch.tensor([5.0, 0, -3, 1, 0])


def moments_of(rows: torch.Tensor) -> Moments:
    moments = Moments()
    for part in torch.tensor_split(rows, [20, 100]):
        moments.add(part)
    return moments


def test_a_prediction_equals_ridge_regression_on_the_rows() -> None:
    found = moments_of(ROWS).predict(GONE, KEPT)
    x, y = ROWS[:, KEPT].double(), ROWS[:, GONE].double()
    strength = (RIDGE[0] + RIDGE[1] * len(KEPT) / len(ROWS)) * float(x.var(0, correction=0).mean()) * len(x)
    oracle = Ridge(alpha=strength).fit(x, y)
    assert torch.allclose(found[:, :-1], torch.from_numpy(oracle.coef_), atol=1e-5)
    assert torch.allclose(found[:, -1], torch.from_numpy(oracle.intercept_), atol=1e-4)


@pytest.mark.parametrize("scale", [1e-19, 1e-23, 0.0])
def test_activations_that_vanish_predict_nothing_wild(scale: float) -> None:
    """Products of 1e-23 are below the resolution of single precision."""
    rows = scale * torch.randn(50, 12, generator=torch.Generator().manual_seed(0))
    rows[:, 3] = 0
    moments = Moments()
    moments.add(rows)
    found = moments.predict(torch.arange(4), torch.arange(4, 12))
    assert found.isfinite().all()
    assert found.abs().max() < 2


def test_activations_whose_squares_overflow_leave_their_mean() -> None:
    rows = 1e20 * (2 + torch.randn(50, 5, generator=torch.Generator().manual_seed(0)))
    moments = Moments()
    moments.add(rows)
    found = moments.predict(GONE, KEPT)
    assert (found[:, :-1] == 0).all()
    torch.testing.assert_close(found[:, -1], rows[:, GONE].double().mean(0))


def test_spread_of_linear_maps_is_that_of_their_outputs() -> None:
    torch.manual_seed(0)
    rows, maps = torch.randn(400, 7).double() + torch.arange(7), torch.randn(3, 5).double()
    moments = Moments()
    for some in rows.split(90):
        moments.add(some)
    mean, variance = moments.of(maps)
    outputs = rows[:, :5] @ maps.T
    torch.testing.assert_close(mean, outputs.mean(0), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(variance, outputs.var(0, unbiased=False), rtol=1e-5, atol=1e-5)
