"""Pruning in one call: the same plan, network and optimizer as by separate steps."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from cases.engine import equal, unchanged
from cases.planning.networks import cnn, images, vit
from torch import nn

import prunerecover.prune_model
from prunerecover import Budget, apply_plan, load_pruned, merge, plan_pruning, prune, reconstruct, save_pruned

HALF, BATCHES = Budget(macs=0.5), images()


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    x, y = BATCHES[0]
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()


@pytest.mark.slow
def test_one_call_equals_plan_apply_and_merge() -> None:
    model, by_hand = vit(), vit()
    plan = prune(nn.DataParallel(model), HALF, BATCHES, kinds=("attention", "neuron"), seed=3)
    steps = plan_pruning(by_hand, HALF, batches=BATCHES, kinds=("attention", "neuron"), seed=3)
    apply_plan(by_hand, steps)
    assert plan.edits == (steps + merge(by_hand)).edits
    assert equal(model.state_dict(), by_hand.state_dict())


@pytest.mark.slow
def test_network_with_batchnorm_is_reconstructed(tmp_path: Any) -> None:
    model, by_hand, dense = cnn(), cnn(), cnn()
    plan = prune(model, HALF, BATCHES)
    steps = plan_pruning(by_hand, HALF, batches=BATCHES)
    apply_plan(by_hand, steps)
    bare = copy.deepcopy(by_hand)
    reconstruct(by_hand, dense, steps, BATCHES)
    assert equal(model.state_dict(), by_hand.state_dict())
    assert not equal(model.state_dict(), bare.state_dict())
    save_pruned(model, plan, tmp_path)
    assert equal(load_pruned(tmp_path, dense).state_dict(), model.state_dict())


@pytest.mark.slow
def test_optimizer_keeps_the_moments_of_what_stays() -> None:
    model = vit()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    step(model, optimizer)
    unchanged_one, moments = model.head.weight, optimizer.state[model.head.weight]["exp_avg"].clone()
    prune(model, Budget(macs=0.3), BATCHES, optimizer=optimizer, kinds="neuron")
    assert {*optimizer.param_groups[0]["params"]} == {*model.parameters()}
    assert torch.equal(optimizer.state[unchanged_one]["exp_avg"], moments)
    for block in model.blocks:
        assert optimizer.state[block.mlp.fc1.weight]["exp_avg"].shape == block.mlp.fc1.weight.shape
    before = copy.deepcopy(model)
    step(model, optimizer)
    assert not equal(model.state_dict(), before.state_dict())


def test_error_behind_the_surgery_leaves_the_model_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    model = cnn()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    held = list(optimizer.param_groups[0]["params"])

    def fails(*_: Any, **__: Any) -> None:
        raise ValueError("no fit")

    monkeypatch.setattr(prunerecover.prune_model, "reconstruct", fails)
    with unchanged(model), pytest.raises(ValueError, match="no fit"):
        prune(model, HALF, BATCHES, optimizer=optimizer)
    assert optimizer.param_groups[0]["params"] == held


def test_other_optimizers_are_refused_before_planning() -> None:
    model = vit()
    with unchanged(model), pytest.raises(TypeError, match="Expected a torch optimizer, but got list"):
        prune(model, HALF, BATCHES, optimizer=[torch.optim.SGD(model.parameters(), lr=0.1)])  # type: ignore[arg-type]
