"""The surgery contract apart from resuming: consequences of a surgery, and events without influence."""

from __future__ import annotations

import copy

import lightning.pytorch as pl
import pytest
import torch
from cases import trainers
from cases.models.habits import Plain, dataset, loader
from cases.refusals import plan_for_plain
from cases.trainers import REMOVE, every_epoch, fit, prune, trainer_of
from lightning.pytorch.callbacks import ModelCheckpoint

from prunerecover import apply_plan, find_units, plan_depth
from prunerecover.callbacks import DepthPrune
from prunerecover.callbacks.ledger.ledger import Ledger

ONCE = {"remove": {"attention": 1, "activation": 2}, "schedule": {"start": 1}}

QUICK = {**ONCE, "importance": "magnitude"}  # cheap, for tests with any removed units


def fit_pruned(folder, make=Plain, callbacks=(), prune=QUICK, resume=None, epochs=4, **trainer):
    """Prune in depth and train; checkpoints of every epoch lie in the folder."""
    callbacks = [DepthPrune(**prune, calibration=16, merge="never"), *callbacks, every_epoch(folder)]
    settings = {"val": loader(shuffle=False), "resume": resume, "epochs": epochs, **trainer}
    module = make()
    return module, trainers.fit(folder, module, *callbacks, **settings)


@pytest.fixture(scope="module")
def pruned_once(tmp_path_factory):
    return fit_pruned(tmp_path_factory.mktemp("once"))


def test_weights_only_file_keeps_the_surgery(pruned_once, tmp_path):
    module, runner = pruned_once
    runner.save_checkpoint(tmp_path / "weights.ckpt", weights_only=True)
    before = runner.test(module, loader(shuffle=False), verbose=False)
    new = pl.Trainer(logger=False, callbacks=[DepthPrune(remove={"attention": 1})], accelerator="cpu")
    assert new.test(Plain(), loader(shuffle=False), ckpt_path=tmp_path / "weights.ckpt", verbose=False) == before


def test_best_score_starts_anew_at_surgery(tmp_path):
    best = ModelCheckpoint(tmp_path / "best", monitor="val_loss", mode="max", filename="{epoch}")
    stop = pl.callbacks.EarlyStopping("val_loss", mode="min", patience=2)
    fit_pruned(tmp_path, callbacks=[best, stop], prune={**ONCE, "schedule": {"start": 3}})
    assert "epoch=3" in best.best_model_path


def test_optimizer_state_follows_surgery(pruned_once):
    module, runner = pruned_once
    (optimizer,) = runner.optimizers
    held = {p for group in optimizer.param_groups for p in group["params"]}
    assert held == {p for p in module.parameters() if p.requires_grad}
    assert set(optimizer.state) == held
    assert all(optimizer.state[p]["exp_avg"].shape == p.shape and optimizer.state[p]["exp_avg"].any() for p in held)


@pytest.mark.slow
def test_tuners_do_not_trigger_surgery_and_survive_it(tmp_path):
    finder = pl.callbacks.LearningRateFinder(num_training_steps=6, early_stop_threshold=None)
    module, _ = fit_pruned(tmp_path, make=_Tunable, callbacks=[finder], prune={**ONCE, "schedule": {"start": 0}})
    assert [event.epoch for event in Ledger.of(module).events] == [0]


@pytest.mark.slow
def test_batch_size_may_be_scaled_around_surgery(tmp_path):
    module = _Tunable()
    prune = DepthPrune(**ONCE, calibration=16, merge="never")
    runner = pl.Trainer(max_epochs=2, logger=False, accelerator="cpu", callbacks=[prune], default_root_dir=tmp_path)
    pl.tuner.Tuner(runner).scale_batch_size(module, max_trials=2, steps_per_trial=1, init_val=4)
    assert not Ledger.of(module).events
    runner.fit(module)
    assert [event.epoch for event in Ledger.of(module).events] == [1]
    pl.tuner.Tuner(runner).scale_batch_size(module, max_trials=2, steps_per_trial=1, init_val=4)
    assert [event.epoch for event in Ledger.of(module).events] == [1]


class _Tunable(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.lr, self.batch_size = 1e-3, 8

    def train_dataloader(self):
        return loader(batch_size=self.batch_size)

    def val_dataloader(self):
        return loader(shuffle=False)


def test_plan_is_applied_before_other_loops(tmp_path):
    module = Plain()
    plan = plan_depth(module.net, importance="magnitude", remove=REMOVE, batches=[dataset().tensors[0]])
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
    first = plan_depth(module.net, importance="magnitude", remove={"attention": 1}, batches=[images])
    pruned = copy.deepcopy(module.net)
    apply_plan(pruned, first)
    second = plan_depth(pruned, importance="magnitude", remove={"activation": 1}, batches=[images])
    apply_plan(pruned, second)
    trainer_of(tmp_path, DepthPrune(plan=first), DepthPrune(plan=second)).test(module, loader(), verbose=False)
    assert torch.equal(module.net.eval()(images), pruned.eval()(images))


def test_checkpoints_ledger_wins_over_a_plan(tmp_path):
    module = Plain()
    fit(tmp_path, module, prune(remove={"attention": 2}), ModelCheckpoint(filename="{epoch}", save_top_k=-1))
    plan = plan_for_plain(replace="zero")
    for epoch, left in ((0, 12), (1, 10)):
        fresh = Plain()
        file = tmp_path / "checkpoints" / f"epoch={epoch}.ckpt"
        trainer_of(tmp_path, DepthPrune(plan=plan)).test(fresh, loader(), ckpt_path=file, verbose=False)
        assert len(find_units(fresh.net)) == left


@pytest.mark.slow
def test_plan_is_fitted_anew_to_trained_weights(tmp_path):
    """Units and forms are the plan's; values are refitted to the weights at the surgery."""
    module = Plain()
    plan = plan_depth(module.net, importance="magnitude", remove={"activation": 2}, batches=[dataset().tensors[0]])
    assert plan.needed_tensors
    fit(tmp_path, module, prune(remove=None, plan=plan))
    done = Ledger.of(module).plans["net"]
    assert done.edits == plan.edits
    assert any(not torch.equal(done.tensors[key], plan.tensors[key]) for key in plan.needed_tensors)
