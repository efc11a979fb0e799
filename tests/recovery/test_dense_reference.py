"""What planning and reconstruction compare with has statistics of its weights: replaced if stale, else left."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from cases.support import stale as cases
from cases.support.stale import anew, same
from torch import Tensor, nn

from prunerecover import Budget, apply_plan, plan_depth, plan_width, reconstruct
from prunerecover.recovery.dense_reference import dense_reference, fresh_statistics
from prunerecover.session.session import Session

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
