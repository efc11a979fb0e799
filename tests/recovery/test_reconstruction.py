"""Reconstruction brings every layer of a narrowed network near to the dense output."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from cases.depth.conv_blocks import error, images, labelled
from sklearn.linear_model import Ridge
from torch import Tensor, nn
from torch.nn import functional as F

from prunerecover import Budget, Plan, apply_plan, plan_width, recalibrate_batchnorm, reconstruct
from prunerecover.calibration.moments import RIDGE
from prunerecover.model.batches import ModelInputs
from prunerecover.recovery.reconstruction import fit_layers
from prunerecover.recovery.reconstruction_order import kept_rows


class Residual(nn.Module):
    """Convolutions with BatchNorm around a residual, and a pooled head on the flattened map."""

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


def residual(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    network = Residual()
    recalibrate_batchnorm(network, [images(64, 5)])
    return network.eval()


def narrowed(dense: nn.Module, **how: Any) -> tuple[nn.Module, Plan]:
    plan = plan_width(dense, Budget(macs=0.4), batches=labelled(), **how)
    network = copy.deepcopy(dense)
    apply_plan(network, plan)
    return network, plan


@pytest.mark.parametrize(("replace", "left"), [("calibrated", 0.7), ("zero", 0.6)])  # the former starts nearer
def test_outputs_come_nearer_to_the_dense_ones_on_other_samples(replace: str, left: float) -> None:
    dense = residual()
    network, plan = narrowed(dense, replace=replace)
    recalibrated = copy.deepcopy(network)
    recalibrate_batchnorm(recalibrated, labelled(256))
    fit_layers(network, dense, plan, [ModelInputs((images,)) for images, _ in labelled(256)])
    assert error(network, dense) < left * error(recalibrated, dense)


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


def test_it_leaves_no_other_trace() -> None:
    dense = residual()
    network, plan = narrowed(dense)
    network.train()
    objects = dict(network.named_parameters())
    there = {name: value.clone() for name, value in dense.state_dict().items()}
    state = torch.get_rng_state()
    stem, head = network.stem.weight.clone(), network.head.weight.clone()
    batches = labelled()
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        reconstruct(network, dense, plan, batches)
    again = narrowed(dense)[0]
    reconstruct(again, dense, plan, batches)
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in network.state_dict().items())
    assert all(parameter is objects[name] for name, parameter in network.named_parameters())
    assert all(torch.equal(value, dense.state_dict()[name]) for name, value in there.items())
    assert torch.equal(state, torch.get_rng_state())
    assert all(module.training for module in network.modules())
    assert not dense.training
    assert torch.equal(network.head.weight, head), "the last layer stays"
    assert torch.allclose(network.stem.weight, stem, atol=1e-5), "nothing before it has changed"
    network(images()).sum().backward()


class TwiceCalled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.shared, self.b = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(F.relu(self.shared(F.relu(self.shared(F.relu(self.a(x)))))))


def test_a_layer_that_is_called_twice_is_fitted_to_both() -> None:
    torch.manual_seed(0)
    dense = TwiceCalled().eval()
    x = torch.randn(256, 4)
    batches = [(x, torch.arange(256) % 3)]
    plan = plan_width(dense, Budget(macs=0.2), batches=batches, replace="zero")
    network = copy.deepcopy(dense)
    apply_plan(network, plan)
    before = (network(x) - dense(x)).square().mean()
    fit_layers(network, dense, plan, [ModelInputs((x,))])
    assert (network(x) - dense(x)).square().mean() < before


def test_networks_in_the_wrong_place_are_refused() -> None:
    dense = residual()
    network, plan = narrowed(dense)
    with pytest.raises(
        ValueError, match=r"Expected the network after the plan and the dense .* outputs in the first and"
    ):
        reconstruct(dense, copy.deepcopy(dense), plan, labelled())
    with pytest.raises(ValueError, match=r"Expected a dense network that the plan has not narrowed, but '\w+' has \d+"):
        reconstruct(network, copy.deepcopy(network), plan, labelled())
    with pytest.raises(ValueError, match="Expected at least one calibration batch, but got none"):
        reconstruct(network, dense, plan, [])
    with pytest.raises(ValueError, match="Expected samples in every calibration batch, but one has none"):
        reconstruct(network, dense, plan, [images()[:0]])


def test_activations_that_are_not_finite_are_refused_and_nothing_changes() -> None:
    dense = residual()
    network, plan = narrowed(dense)
    there = {name: value.clone() for name, value in network.state_dict().items()}
    broken = images()
    broken[0, 0, 0, 0] = torch.nan
    with pytest.raises(ValueError, match=r"finite BatchNorm statistics, but running_mean of '\w+' came out as"):
        reconstruct(network, dense, plan, [broken])
    assert all(torch.equal(value, network.state_dict()[name]) for name, value in there.items())


@pytest.mark.parametrize("sizes", [(8,) * 8, (63, 1)])
def test_how_samples_are_put_into_batches_does_not_matter(sizes: tuple[int, ...]) -> None:
    dense = residual()
    network, plan = narrowed(dense)
    whole, x = copy.deepcopy(network), images(64)
    reconstruct(whole, dense, plan, [x])
    reconstruct(network, dense, plan, x.split(list(sizes)))
    with torch.no_grad():
        torch.testing.assert_close(network(images(64, 7)), whole(images(64, 7)), rtol=0.02, atol=0.02)


class OneNorm(nn.Module):
    """BatchNorm shared by three convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.BatchNorm2d(16), nn.Linear(16, 4)
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.first, self.second = (nn.Conv2d(16, 16, 3, padding=1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(x)))
        for layer in (self.first, self.second):
            x = x + F.relu(self.norm(layer(x)))
        return self.head(x.mean((2, 3)))


def test_a_norm_that_serves_several_layers_keeps_its_statistics() -> None:
    torch.manual_seed(0)
    dense = OneNorm()
    recalibrate_batchnorm(dense, [images(64, 5)])
    network, plan = narrowed(dense.eval())
    before, norm = copy.deepcopy(network), network.get_submodule("norm")
    fit_layers(network, dense, plan, [ModelInputs((images,)) for images, _ in labelled(256)])
    assert torch.equal(norm.running_var, before.norm.running_var)  # type: ignore[arg-type,union-attr]
    assert error(network, dense) < error(before, dense)
