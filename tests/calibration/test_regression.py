"""Streaming fits and predictions from moments equal scikit-learn's and numpy's on all rows at once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LinearRegression, Ridge
from torch import Tensor

from prunerecover.calibration.moments import RIDGE, Moments
from prunerecover.calibration.regression import AffineRegression, ChannelRegression

T, C, D = 400, 6, 5


def rows(seed: int, offset: float = 0.0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(T, C, generator=generator) * torch.linspace(0.5, 2, C) + offset
    y = torch.tanh(x @ torch.randn(C, D, generator=generator)) + offset
    return x, y, torch.rand(T, generator=generator) + 0.1


def parts(seed: int, *tensors: Tensor) -> list[tuple[Tensor, ...]]:
    cuts = sorted(np.random.default_rng(seed).choice(np.arange(1, T), size=4, replace=False).tolist())
    return list(zip(*(torch.tensor_split(t, cuts) for t in tensors), strict=True))


@given(seed=st.integers(0, 99), offset=st.sampled_from([0.0, 100.0]))
@settings(max_examples=5, deadline=None)
def test_channel_fit_equals_weighted_least_squares(seed: int, offset: float) -> None:
    x, _, w = rows(seed, offset)
    y = torch.nn.functional.gelu(x - offset) + offset
    fit = ChannelRegression()
    for part in parts(seed, x, y, w):
        fit.add(*part)
    slope, bias = fit.solve()
    for c in range(C):
        oracle = LinearRegression().fit(x[:, c : c + 1].double(), y[:, c].double(), sample_weight=w.double())
        assert slope[c].item() == pytest.approx(oracle.coef_[0], rel=1e-3, abs=1e-4)
        assert bias[c].item() == pytest.approx(oracle.intercept_, rel=1e-3, abs=1e-3)


@given(seed=st.integers(0, 99), ridge=st.sampled_from([1e-3, 0.3, 3.0, 100.0]), offset=st.sampled_from([0.0, 100.0]))
@settings(max_examples=10, deadline=None)
def test_affine_fit_equals_ridge_on_all_rows(seed: int, ridge: float, offset: float) -> None:
    x, y, w = rows(seed, offset)
    prior = torch.randn(D, C, generator=torch.Generator().manual_seed(seed))
    fit = AffineRegression()
    for part in parts(seed, x, y, w):
        fit.add(*part)
    weight, bias = fit.solve(ridge, prior)
    x, y, w = x.double().numpy(), y.double().numpy(), w.double().numpy()
    mean = np.average(x, axis=0, weights=w)
    variance = np.average((x - mean) ** 2, axis=0, weights=w).mean()
    towards = y - x @ prior.double().numpy().T  # shrinking W towards W0 is shrinking W - W0 towards zero
    oracle = Ridge(alpha=ridge * variance * w.sum()).fit(x, towards, sample_weight=w)
    np.testing.assert_allclose(weight, oracle.coef_ + prior.double().numpy(), atol=1e-4)
    np.testing.assert_allclose(bias, oracle.intercept_, atol=2e-2 if offset else 1e-4)


def test_constant_channel_gets_slope_zero_and_its_value() -> None:
    x = torch.full((50, 2), 3.0)
    fit = ChannelRegression()
    fit.add(x, x * 2, torch.ones(50))
    assert [found.tolist() for found in fit.solve()] == [[0, 0], [6, 6]]


def test_nothing_added_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="Expected rows to fit to, but none were added"):
        ChannelRegression().solve()
    with pytest.raises(RuntimeError, match="Expected rows to fit to, but none were added"):
        AffineRegression().solve(1.0, torch.zeros(D, C))


KEPT, GONE = torch.tensor([0, 2, 3]), torch.tensor([1, 4])


def moments_of(rows: Tensor) -> Moments:
    moments = Moments()
    for part in torch.tensor_split(rows, [20, 40]):
        moments.add(part)
    return moments


def test_a_prediction_equals_ridge_regression_on_the_rows() -> None:
    rows = torch.randn(300, 5) @ torch.randn(5, 5) + torch.tensor([5.0, 0, -3, 1, 0])
    found = moments_of(rows).predict(GONE, KEPT)
    x, y = rows[:, KEPT].double(), rows[:, GONE].double()
    strength = (RIDGE[0] + RIDGE[1] * len(KEPT) / len(rows)) * float(x.var(0, correction=0).mean()) * len(x)
    oracle = Ridge(alpha=strength).fit(x, y)
    assert torch.allclose(found[:, :-1], torch.from_numpy(oracle.coef_), atol=1e-5)
    assert torch.allclose(found[:, -1], torch.from_numpy(oracle.intercept_), atol=1e-4)


@pytest.mark.parametrize("scale", [1e-19, 1e-23, 0.0])
def test_activations_that_vanish_predict_nothing_wild(scale: float) -> None:
    """Products of 1e-23 are below the resolution of single precision."""
    rows = scale * torch.randn(50, 12)
    rows[:, 3] = 0
    found = moments_of(rows).predict(torch.arange(4), torch.arange(4, 12))
    assert found.isfinite().all()
    assert found.abs().max() < 2


def test_activations_whose_squares_overflow_leave_their_mean() -> None:
    rows = 1e20 * (2 + torch.randn(50, 5))
    found = moments_of(rows).predict(GONE, KEPT)
    assert (found[:, :-1] == 0).all()
    torch.testing.assert_close(found[:, -1], rows[:, GONE].double().mean(0))


def test_spread_of_linear_maps_is_that_of_their_outputs() -> None:
    rows, maps = torch.randn(400, 7).double() + torch.arange(7), torch.randn(3, 5).double()
    mean, variance = moments_of(rows).of(maps)
    outputs = rows[:, :5] @ maps.T
    torch.testing.assert_close(mean, outputs.mean(0), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(variance, outputs.var(0, unbiased=False), rtol=1e-5, atol=1e-5)


@given(seed=st.integers(0, 99), offset=st.sampled_from([0.0, 100.0]))
@settings(max_examples=5, deadline=None)
def test_joined_parts_fit_like_the_whole(seed: int, offset: float) -> None:
    """Origins of parts differ, by far where rows are sorted."""
    tensors = [tensor[rows(seed, offset)[0][:, 0].argsort()] for tensor in rows(seed, offset)]
    whole, joined = AffineRegression(), AffineRegression()
    whole.add(*tensors)
    for part in parts(seed, *tensors):
        own = AffineRegression()
        own.add(*part)
        joined.join(*own.sums)
    for found, expected in zip(joined.solve(1e-3, None), whole.solve(1e-3, None), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * max(1.0, offset))
    torch.testing.assert_close(joined.second_moment(), whole.second_moment(), rtol=1e-5, atol=1e-4 * max(1.0, offset))
