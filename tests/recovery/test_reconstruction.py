"""Reconstruction brings every layer of a narrowed network near to the dense output."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from cases.depth.conv_blocks import error, images, labelled
from cases.engine import equal, unchanged
from sklearn.linear_model import Ridge
from torch import Tensor, nn
from torch.nn import functional as F

from prunerecover import Budget, Plan, apply_plan, plan_width, recalibrate_batchnorm, reconstruct
from prunerecover.calibration.moments import RIDGE
from prunerecover.model.batches import ModelInputs
from prunerecover.recovery.reconstruction import fit_layers
from prunerecover.recovery.reconstruction_order import kept_rows


class Residual(nn.Module):
    """Convolutions with BatchNorm around a residual, and a head on the pooled map."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12)
        self.first, self.first_norm = nn.Conv2d(12, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.second, self.second_norm = nn.Conv2d(16, 12, 3, padding=1), nn.BatchNorm2d(12)
        self.hidden, self.head = nn.Linear(12, 24), nn.Linear(24, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(x)))
        x = F.relu(x + self.second_norm(self.second(F.relu(self.first_norm(self.first(x))))))
        return self.head(F.relu(self.hidden(x.mean((2, 3)))))


@pytest.fixture(scope="module")
def dense() -> nn.Module:
    torch.manual_seed(0)
    network = Residual()
    recalibrate_batchnorm(network, [images(64, 5)])
    return network.eval()


def narrowed(dense: nn.Module) -> tuple[Any, Plan]:
    plan = plan_width(dense, Budget(macs=0.4), batches=labelled())
    network = copy.deepcopy(dense)
    apply_plan(network, plan)
    return network, plan


@pytest.fixture
def pruned(dense: nn.Module) -> tuple[Any, Plan]:
    return narrowed(dense)


def samples() -> list[ModelInputs]:
    return [ModelInputs((images,)) for images, _ in labelled(256)]


def test_outputs_come_nearer_to_the_dense_ones_on_other_samples(dense: nn.Module, pruned: tuple[Any, Plan]) -> None:
    network, plan = pruned
    recalibrated = copy.deepcopy(network)
    recalibrate_batchnorm(recalibrated, labelled(256))
    fit_layers(network, dense, plan, samples())
    assert error(network, dense) < 0.7 * error(recalibrated, dense)


@pytest.mark.parametrize("bias", [True, False])
def test_linear_layers_equal_ridge_regression(bias: bool) -> None:
    """Without a bias, through zero."""
    torch.manual_seed(0)
    dense = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 5, bias), nn.Tanh(), nn.Linear(5, 3)).eval()
    x = torch.randn(300, 6)
    plan = plan_width(dense, Budget(macs=0.4), batches=[(x, torch.arange(300) % 3)], replace="zero")
    network = copy.deepcopy(dense)
    apply_plan(network, plan)
    start = copy.deepcopy(network[2])
    reconstruct(network, dense, plan, [x])
    reads = torch.tanh(network[0](x)).detach()
    target = dense[2](torch.tanh(dense[0](x)))[:, kept_rows(dense, plan)["2"]] - start(reads)
    spread = float((reads.var(0, correction=0) if bias else reads.square()).mean())
    strength = (RIDGE[0] + RIDGE[1] * reads.shape[1] / len(reads)) * spread * len(reads)
    oracle = Ridge(alpha=strength, fit_intercept=bias).fit(reads.double().numpy(), target.detach().double().numpy())
    np.testing.assert_allclose((network[2].weight - start.weight).detach().numpy(), oracle.coef_, atol=1e-4)
    if bias:
        np.testing.assert_allclose((network[2].bias - start.bias).detach().numpy(), oracle.intercept_, atol=1e-4)


def test_it_leaves_no_other_trace(dense: nn.Module, pruned: tuple[Any, Plan]) -> None:
    network, plan = pruned
    again = copy.deepcopy(network)
    network.train()
    objects, before = dict(network.named_parameters()), copy.deepcopy(network)
    with unchanged(dense), torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        reconstruct(network, dense, plan, labelled())
    reconstruct(again, dense, plan, labelled())
    assert equal(network.state_dict(), again.state_dict())
    assert all(parameter is objects[name] for name, parameter in network.named_parameters())
    assert all(module.training for module in network.modules())
    assert torch.equal(network.head.weight, before.head.weight), "the last layer stays"
    assert torch.allclose(network.stem.weight, before.stem.weight, atol=1e-5), "nothing before it has changed"
    network(images()).sum().backward()


@pytest.mark.parametrize(
    ("places", "batches", "message"),
    [
        ("dense, dense", labelled(), "Expected the network after the plan and the dense .* outputs in the first and"),
        ("pruned, pruned", labelled(), r"a dense network that the plan has not narrowed, but '[\w.]+' has \d+"),
        ("pruned, dense", [], "Expected at least one calibration batch, but got none"),
        ("pruned, dense", [images()[:0]], "Expected samples in every calibration batch, but one has none"),
        ("pruned, dense", [images() * torch.nan], r"BatchNorm statistics, but running_mean of '[\w.]+' came out as"),
    ],
)
def test_what_is_refused_changes_nothing(
    dense: nn.Module, pruned: tuple[Any, Plan], places: str, batches: list[Any], message: str
) -> None:
    network, other = ({"dense": dense, "pruned": pruned[0]}[place] for place in places.split(", "))
    with unchanged(network), pytest.raises(ValueError, match=message):
        reconstruct(network, copy.deepcopy(other), pruned[1], batches)


def test_how_samples_are_put_into_batches_does_not_matter(dense: nn.Module, pruned: tuple[Any, Plan]) -> None:
    network, plan = pruned
    whole, x = copy.deepcopy(network), images(64)
    reconstruct(whole, dense, plan, [x])
    reconstruct(network, dense, plan, x.split([63, 1]))
    with torch.no_grad():
        torch.testing.assert_close(network(images(64, 7)), whole(images(64, 7)), rtol=0.02, atol=0.02)


class TwiceCalled(nn.Module):
    """A convolution with two calls, and a BatchNorm with three."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.BatchNorm2d(16), nn.Linear(16, 4)
        self.stem, self.shared = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(x)))
        for _ in range(2):
            x = x + F.relu(self.norm(self.shared(x)))
        return self.head(x.mean((2, 3)))


def test_a_layer_with_two_calls_is_fitted_to_both_and_a_norm_keeps_its_statistics() -> None:
    torch.manual_seed(0)
    dense = TwiceCalled()
    recalibrate_batchnorm(dense, [images(64, 5)])
    network, plan = narrowed(dense.eval())
    before = copy.deepcopy(network)
    fit_layers(network, dense, plan, samples())
    assert torch.equal(network.norm.running_var, before.norm.running_var)
    assert error(network, dense) < error(before, dense)
