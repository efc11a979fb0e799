"""Strategies that shard the model before the callbacks see it: what they can prune, and what they refuse."""

from __future__ import annotations

import warnings

import pytest
import torch
from cases.models.habits import Plain
from cases.refusals import plan_for_plain
from cases.trainers import prune, sharded
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy

from prunerecover import Budget, plan_width
from prunerecover.callbacks import DepthPrune, WidthPrune
from prunerecover.callbacks.ledger.ledger import Ledger


@pytest.fixture(params=[FSDPStrategy, ModelParallelStrategy, DeepSpeedStrategy])
def strategy(request):
    return request.param.__new__(request.param)


def test_sharding_without_a_plan(strategy):
    module, callback = Plain(), prune(schedule={})
    match = (
        rf"Expected DepthPrune\(plan=...\) with {type(strategy).__name__}, which shards the model before .* beforehand"
    )
    with pytest.raises(ValueError, match=match):
        callback.setup(sharded(strategy, callback), module, "fit")
    assert not Ledger.of(module).plans


def test_sharding_with_a_later_surgery(strategy):
    module, callback = Plain(), DepthPrune(plan=plan_for_plain(replace="identity"), schedule={"start": 1})
    with pytest.raises(
        ValueError, match="Expected schedule start=0 with .*, but got 1. Train the dense model in a fit"
    ):
        callback.setup(sharded(strategy, callback), module, "fit")
    assert not Ledger.of(module).plans


def test_sharding_with_a_plan_prunes_once(strategy):
    first, second = plan_for_plain(replace="identity"), plan_for_plain(replace="identity")
    module = Plain()
    callback = DepthPrune(plan=first)
    trainer = sharded(strategy, callback)
    callback.setup(trainer, module, "fit")
    callback.setup(trainer, module, "test")
    assert Ledger.of(module).plans["net"].edits == second.edits
    assert not callback._due_surgeries(trainer, module)


def narrowing(strategy, **arguments):
    module = Plain()
    module.net = torch.nn.Sequential(torch.nn.Conv2d(1, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Conv2d(8, 4, 3)).eval()
    batch = torch.randn(8, 1, 8, 8)
    plan = plan_width(module.net, Budget(macs=0.3), batches=[batch], loss=lambda net, x: net(x).square().mean())
    callback = WidthPrune(plan=plan, **arguments)
    return module, callback, sharded(strategy, callback)


def test_sharding_leaves_batchnorm_as_it_was_and_says_so_unless_a_checkpoint_is_read(strategy):
    module, callback, trainer = narrowing(strategy)
    callback.setup(trainer, module, "fit")
    assert module.net[0].out_channels < 8
    with pytest.warns(UserWarning, match="without recalibrating BatchNorm, .* and without reconstruction: scores will"):
        callback.on_train_start(trainer, module)
    module, callback, trainer = narrowing(strategy)
    callback.setup(trainer, module, "fit")
    Ledger.of(module).from_checkpoint = True
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        callback.on_train_start(trainer, module)


def test_reconstruction_before_sharding_is_refused(strategy):
    module, callback, trainer = narrowing(strategy, reconstruct=True)
    with pytest.raises(
        ValueError, match=r"Expected no reconstruct=True with \w+Strategy, which shards the model before"
    ):
        callback.setup(trainer, module, "fit")
    assert module.net[0].out_channels == 8
    callback.setup(trainer, module, "test")
    assert module.net[0].out_channels < 8
