"""A plan of the user's own before fits and other loops."""

from __future__ import annotations

import copy

import pytest
import torch
from cases.models.habits import Plain, dataset, loader
from cases.trainers import REMOVE, fit, prune, trainer_of
from lightning.pytorch.callbacks import ModelCheckpoint

from prunerecover import Plan, apply_plan, find_units, plan_depth
from prunerecover.callbacks import DepthPrune
from prunerecover.callbacks.ledger.ledger import Ledger


def test_plan_is_applied_before_other_loops(tmp_path):
    module = Plain()
    plan = plan_depth(module.net, remove=REMOVE, batches=[dataset().tensors[0]])
    images = dataset().tensors[0]
    expected = copy.deepcopy(module.net).eval()
    apply_plan(expected, plan)
    path = plan.save(tmp_path / "plan.json")
    runner = trainer_of(tmp_path, DepthPrune(plan=path))
    for loop in (runner.test, runner.validate, runner.predict, runner.test):
        loop(module, loader(shuffle=False), **({} if loop == runner.predict else {"verbose": False}))
        assert torch.equal(module.net.eval()(images), expected(images))
    runner.fit(module, loader())  # the same callback does not do it again
    assert len(Ledger.of(module).events) == 1


def test_two_plans_in_turn(tmp_path):
    module = Plain()
    images = dataset().tensors[0]
    first = plan_depth(module.net, remove={"attention": 1}, batches=[images])
    pruned = copy.deepcopy(module.net)
    apply_plan(pruned, first)
    second = plan_depth(pruned, remove={"activation": 1}, batches=[images])
    apply_plan(pruned, second)
    trainer_of(tmp_path, DepthPrune(plan=first), DepthPrune(plan=second)).test(module, loader(), verbose=False)
    assert torch.equal(module.net.eval()(images), pruned.eval()(images))


def test_checkpoints_ledger_wins_over_a_plan(tmp_path):
    module = Plain()
    fit(tmp_path, module, prune(remove={"attention": 2}), ModelCheckpoint(filename="{epoch}", save_top_k=-1))
    plan = plan_depth(Plain().net, remove={"activation": 1}, batches=[dataset().tensors[0]], replace="zero")
    for epoch, left in ((0, 12), (1, 10)):
        fresh = Plain()
        file = tmp_path / "checkpoints" / f"epoch={epoch}.ckpt"
        trainer_of(tmp_path, DepthPrune(plan=plan)).test(fresh, loader(), ckpt_path=file, verbose=False)
        assert len(find_units(fresh.net)) == left


@pytest.mark.slow
def test_plan_is_fitted_anew_to_trained_weights(tmp_path):
    """The units and what they leave are the plan's; the values are those that fit the weights at the surgery."""
    module = Plain()
    plan = plan_depth(module.net, remove={"activation": 2}, batches=[dataset().tensors[0]])
    assert plan.needed_tensors
    fit(tmp_path, module, prune(remove=None, plan=plan))
    done = Ledger.of(module).plans["net"]
    assert done.edits == plan.edits
    assert any(not torch.equal(done.tensors[key], plan.tensors[key]) for key in plan.needed_tensors)


@pytest.mark.slow
def test_plan_beside_the_checkpoints_makes_the_same_structure(tmp_path):
    """Sharded strategies need it early; after a resume it still has the fitted tensors of the surgeries before."""
    steps = {"start": 1, "every": 1, "step": 1}
    every = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
    fit(tmp_path, Plain(), prune(remove={"activation": 2}, schedule=steps), every, epochs=3)
    whole = Plan.load(tmp_path / "plan.json")
    assert set(whole.tensors) == set(whole.needed_tensors)
    again = Plain()
    every = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
    runner = trainer_of(tmp_path, prune(remove={"activation": 2}, schedule=steps), every, epochs=3)
    runner.fit(again, loader(), ckpt_path=tmp_path / "epoch=1.ckpt")
    resumed = Plan.load(tmp_path / "plan.json")
    assert resumed.edits == whole.edits
    assert set(resumed.tensors) == set(whole.tensors)
