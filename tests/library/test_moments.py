"""Fits from the moments of a station against least squares on the rows."""

from __future__ import annotations

import pytest
import torch
from sklearn.linear_model import Ridge
from torch import Tensor, nn

from prunerecover.library.moments import RIDGE, StationMoments
from prunerecover.library.stations import Seen

KEPT = torch.tensor([0, 2, 3])


def station() -> tuple[StationMoments, nn.Linear, Tensor, Tensor]:
    """Moments of correlated rows, with the linear that reads them."""
    torch.manual_seed(0)
    dense = nn.Linear(5, 4)
    read = torch.randn(4000, 5) @ torch.randn(5, 5) + 1
    given = dense(read).detach()
    moments = StationMoments()
    for part in (slice(0, 1500), slice(1500, None)):
        total = torch.zeros(len(read[part]), 4)
        moments.add(Seen(read[part], read[part], given[part], total), total)
    return moments, dense, read, given


@pytest.mark.parametrize("features", [KEPT, torch.eye(5).double()[:3] + 0.1])
def test_readers_are_ridge_regressions_towards_the_dense_weights(features: Tensor) -> None:
    moments, dense, read, given = station()
    before = dense.weight.detach().double()
    if features.ndim == 1:
        left, prior = read[:, features].double(), before[:, features]
    else:
        left, prior = read.double() @ features.T, before @ torch.linalg.pinv(features)
    ridge = RIDGE[0] + RIDGE[1] * len(features) / len(read)
    strength = ridge * len(left) * float(left.var(0, correction=0).mean())
    oracle = Ridge(strength).fit(left, given.double() - left @ prior.T)
    found = moments.reader(features, dense)
    expected = {"weight": prior + torch.tensor(oracle.coef_), "bias": torch.tensor(oracle.intercept_)}
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value.float(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("features", [KEPT, torch.eye(5).double()[:3] + 0.1])
def test_readers_are_nearer_than_cut_ones(features: Tensor) -> None:
    moments, dense, read, given = station()
    left = read[:, features] if features.ndim == 1 else read @ features.T.float()
    found = moments.reader(features, dense)
    prior = dense.weight[:, features] if features.ndim == 1 else dense.weight @ torch.linalg.pinv(features).float()
    lost, cut = (((left @ w.T + found["bias"]) - given).var(0).mean() for w in (found["weight"], prior))
    assert lost < 0.8 * cut


def test_replacements_are_ridge_regressions_towards_constants_which_are_means() -> None:
    moments, _, read, given = station()
    strength = (RIDGE[0] + RIDGE[1] * read.shape[1] / len(read)) * len(read) * float(read.var(0, correction=0).mean())
    oracle = Ridge(strength).fit(read.double(), given.double())
    found = moments.replacement("affine")
    torch.testing.assert_close(found["weight"], torch.tensor(oracle.coef_).float(), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(found["bias"], torch.tensor(oracle.intercept_).float(), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(moments.replacement("constant")["bias"], given.mean(0), rtol=1e-3, atol=1e-3)


def test_linears_too_wide_for_second_moments_are_cut_and_constants_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prunerecover.library.moments.LARGEST", 4)
    moments, dense, _, given = station()
    assert torch.equal(moments.reader(KEPT, dense)["weight"], dense.weight[:, KEPT])
    assert torch.equal(moments.reader(KEPT, dense)["bias"], dense.bias)
    torch.testing.assert_close(moments.replacement("constant")["bias"], given.mean(0), rtol=1e-3, atol=1e-3)


def test_linears_fit_before_a_layer_scale_and_replacements_without() -> None:
    moments, dense, read, given = station()
    scale, scaled = torch.tensor([0.5, 2.0, -1.0, 0.0]), StationMoments()
    total = torch.zeros(len(read), 4)
    scaled.add(Seen(read, read, 3 * given * scale, total, scale, factor=3.0), total)
    found = scaled.reader(torch.arange(5), dense)
    whole = moments.reader(torch.arange(5), dense)
    torch.testing.assert_close(found["weight"][:3], whole["weight"][:3], rtol=1e-3, atol=1e-3)
    constant = moments.replacement("constant")["bias"] * scale
    torch.testing.assert_close(scaled.replacement("constant")["bias"], constant, rtol=1e-3, atol=1e-3)
