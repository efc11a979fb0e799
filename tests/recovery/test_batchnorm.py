"""Recalibrated BatchNorm statistics: plain averages over batches, for networks and for their references."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from cases.models.hand_made_groups import images, small_resnet
from cases.support import stale as cases
from cases.support.stale import anew, same
from torch import Tensor, nn

from prunerecover import Budget, apply_plan, plan_depth, plan_width, reconstruct
from prunerecover.recovery.batchnorm import recalibrate_batchnorm
from prunerecover.recovery.dense_reference import dense_reference, fresh_statistics
from prunerecover.session.session import Session


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net, self.drop = small_resnet(), nn.Dropout(0.5)
        self.unused, self.bare = nn.BatchNorm2d(3), nn.BatchNorm2d(3, track_running_stats=False)
        self.unused.running_mean += 7

    def forward(self, x: Tensor) -> Tensor:
        return self.net(self.drop(self.bare(x)))


def test_statistics_equal_those_of_training_without_momentum() -> None:
    """The oracle: PyTorch's own cumulative average, every layer in training mode; there is no dropout."""
    model, batches = small_resnet(), images()
    oracle = copy.deepcopy(model).train()
    for module in oracle.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None
            module.reset_running_stats()
    with torch.no_grad():
        for x, _ in batches:
            oracle(x)
    recalibrate_batchnorm(model, batches)
    found, expected = model.state_dict(), oracle.state_dict()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_all_else_is_as_before() -> None:
    model = Net().train()
    model.net.layer1.eval()
    model.net.bn1.momentum = 0.3
    before, random_state = copy.deepcopy(model), torch.get_rng_state()
    recalibrate_batchnorm(model, images())
    assert torch.equal(torch.get_rng_state(), random_state)
    for (name, module), old in zip(model.named_modules(), before.modules(), strict=True):
        assert module.training == old.training, name
        assert getattr(module, "momentum", None) == getattr(old, "momentum", None)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before.parameters(), strict=True))
    changed = {
        name.rpartition(".")[0]
        for name, t in model.state_dict().items()
        if not torch.equal(t, before.state_dict()[name])
    }
    assert changed == {f"net.{n}" for n, m in model.net.named_modules() if isinstance(m, nn.BatchNorm2d)}


def test_a_model_without_batchnorm_is_left_alone() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))
    before = copy.deepcopy(model.state_dict())
    recalibrate_batchnorm(model, [])
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())


@pytest.mark.parametrize(
    ("batches", "error", "message"),
    [
        ([], ValueError, "Expected at least one batch to estimate BatchNorm statistics on, but there was none"),
        ([images()[0], (torch.zeros(2, 5, 8, 8),)], RuntimeError, "channels"),
        ([images()[0], (images()[0][0] * torch.nan,)], ValueError, "running_mean of 'bn1' came out as NaN or infinite"),
        ([(images()[0][0] * torch.inf,)], ValueError, "finite BatchNorm statistics, but running_mean of 'bn1'"),
    ],
)
def test_a_failure_changes_nothing(batches: list[tuple[Tensor, ...]], error: type[Exception], message: str) -> None:
    model = small_resnet()
    before = copy.deepcopy(model)
    with pytest.raises(error, match=message):
        recalibrate_batchnorm(model, batches)
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.state_dict().items())
    assert [m.training for m in model.modules()] == [m.training for m in before.modules()]
    assert model.bn1.momentum == before.bn1.momentum


Batches = list[tuple[Tensor, Tensor]]


@pytest.fixture(scope="module")
def right() -> nn.Module:
    return cases.right()


@pytest.fixture(scope="module")
def stale() -> nn.Module:
    return cases.stale()


@pytest.fixture(scope="module")
def batches() -> Batches:
    images, labels = cases.told()
    return list(zip(images.split(16), labels.split(16), strict=True))


def test_right_statistics_stay(right: nn.Module, batches: Batches) -> None:
    assert fresh_statistics(right, batches) == {}
    assert dense_reference(right, batches) is right


def test_stale_ones_are_replaced_in_a_copy_that_shares_the_weights(stale: nn.Module, batches: Batches) -> None:
    before = copy.deepcopy(stale)
    found = dense_reference(stale, batches)
    assert same(found, anew(stale, batches))
    assert same(stale, before)
    assert found[0].weight is stale[0].weight


def test_without_labels_nothing_can_be_said(stale: nn.Module, batches: Batches) -> None:
    def broken(network: nn.Module, batch: Any) -> Tensor:
        raise RuntimeError("no such loss")

    images = [some for some, _ in batches]
    assert fresh_statistics(stale, images) == {}
    assert fresh_statistics(stale, list(zip(images, images, strict=True))) == {}  # what an autoencoder is given
    assert fresh_statistics(stale, batches[:1]) == {}
    assert fresh_statistics(stale, batches, broken) == {}


def test_a_loss_may_know_the_network_by_reference(stale: nn.Module, batches: Batches) -> None:
    def loss(_: nn.Module, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(stale(batch[0]), batch[1])

    before = copy.deepcopy(stale)
    session = Session.with_dense_reference(stale, batches, loss=loss)
    assert same(session.model, anew(before, batches))
    assert same(stale, before)


@pytest.mark.parametrize("dimension", ["width", "depth"])
def test_plans_are_those_of_the_network_with_its_own_statistics(
    stale: nn.Module, batches: Batches, dimension: str
) -> None:
    def planned(network: nn.Module) -> tuple[Any, dict[str, Tensor]]:
        if dimension == "width":
            plan = plan_width(network, Budget(macs=0.4), batches=batches)
        else:
            plan = plan_depth(network, remove={"layer": 1}, batches=batches)
        return plan.edits, dict(plan.tensors)

    before = copy.deepcopy(stale)
    edits, tensors = planned(stale)
    expected, others = planned(anew(stale, batches))
    assert edits == expected
    assert tensors.keys() == others.keys()
    assert all(torch.equal(tensors[key], others[key]) for key in tensors)
    assert same(stale, before)


def test_layers_are_fitted_to_the_network_with_its_own_statistics(stale: nn.Module, batches: Batches) -> None:
    plan = plan_width(stale, Budget(macs=0.4), batches=batches)
    networks = []
    for dense in (stale, anew(stale, batches)):
        network = copy.deepcopy(stale)
        apply_plan(network, plan)
        kept = reconstruct(network, dense, plan, batches)
        assert kept.way == "reconstructed"
        networks.append(network)
    assert same(*networks)
