"""RecoverySchedule: each step has the closed form times the user's rate, visible to all other code."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from cases.models.habits import Manual, Plain, TwoOptimizers, dataset, loader
from cases.trainers import assert_same, fit, prune
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR

from prunerecover import LoRARecover, RecoverySchedule, apply_plan, plan_depth
from prunerecover.callbacks import recovery_schedule

IMAGES = dataset().tensors[0]
PER_EPOCH = 6  # 48 samples, batches of 8
WHOLE = {"decay": 1.0, "lr": None}  # a decay of all steps, from the user's own rate
TWICE = {"remove": {"attention": 1, "activation": 2}, "schedule": {"start": 1, "every": 4, "step": 1}}


def closed_form(steps: int, warmup: int) -> list[float]:
    return list(np.minimum(1, (np.arange(steps) + 1) / warmup) * np.linspace(1, 0, steps + 1)[:-1])


class Watch(pl.Callback):
    """Notes the rates of the steps, and the visible rates before and after each batch."""

    def __init__(self) -> None:
        self.taken, self.found = [], []

    def on_train_start(self, trainer, pl_module):
        for optimizer in trainer.optimizers:
            optimizer._optimizer_step_code = lambda o=optimizer: self.taken.append(rates(o))

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.found.append([rates(o) for o in trainer.optimizers])


def rates(optimizer) -> list[float]:
    return [group["lr"] for group in optimizer.param_groups]


def watched(folder: Path, module: pl.LightningModule, *callbacks: pl.Callback, **settings: Any) -> Watch:
    watch = Watch()
    fit(folder, module, *callbacks, watch, **{"val": loader(8, shuffle=False), "epochs": 3, **settings})
    return watch


def simulated(make: Callable[[Any], Any], steps: int, every: int = 1) -> list[float]:
    """Return the rates of the user's schedule at each step, without a fit."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], 1e-2)
    scheduler, found = make(optimizer), []
    for step in range(1, steps + 1):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if step % every == 0:
            scheduler.step()
    return found


def test_with_one_cycle_of_sgd(tmp_path: Path) -> None:
    watch = watched(tmp_path, Plain("sgd", "onecycle"), prune(), RecoverySchedule(4, **WHOLE))
    own = simulated(lambda optimizer: OneCycleLR(optimizer, 1e-2, total_steps=18), 18)
    factors = [1] * PER_EPOCH + closed_form(2 * PER_EPOCH, 4)
    assert np.allclose(watch.taken, np.outer(np.multiply(own, factors), [1, 1]))
    assert np.allclose(np.array(watch.found)[:, 0, 0], own)


def test_with_cosine_accumulation_and_adapters(tmp_path: Path) -> None:
    """Six batches are two steps; adapters are in the groups of the adapted weights."""
    callbacks = [LoRARecover(rank=2, start=1), prune(), RecoverySchedule(0.5, **WHOLE)]
    watch = watched(tmp_path, Plain(), *callbacks, epochs=4, accumulate_grad_batches=4)
    own = simulated(lambda optimizer: CosineAnnealingLR(optimizer, 4), 8, every=2)
    assert np.allclose(watch.taken, np.outer(np.multiply(own, [1, 1, *closed_form(6, 3)]), [1, 1]))


def test_with_two_optimizers_by_hand(tmp_path: Path) -> None:
    """A batch is a step of both optimizers."""
    watch = watched(tmp_path, TwoOptimizers(), prune(), RecoverySchedule(4, **WHOLE))
    factors = [1] * PER_EPOCH + closed_form(2 * PER_EPOCH, 4)
    assert np.allclose(watch.taken, np.outer(np.repeat(factors, 2), 1) * np.array([[1e-2], [1e-3]] * 18))
    assert all(found == [[1e-2], [1e-3]] for found in watch.found)


def test_of_a_model_that_was_pruned_before_until_the_last_step(tmp_path: Path) -> None:
    module = Plain("sgd")
    plan = plan_depth(module.net, importance="magnitude", remove={"attention": 1}, batches=[IMAGES], replace="zero")
    apply_plan(module.net, plan)
    watch = watched(tmp_path, module, RecoverySchedule(2, "cosine", **WHOLE), max_steps=8)
    factors = np.array([0.5, *[1] * 7]) * (0.5 + 0.5 * np.cos(np.pi * np.arange(8) / 8))
    assert np.allclose(np.array(watch.taken)[:, 0], np.array(watch.found)[:, 0, 0] * factors)


def test_checkpoints_hold_the_users_own_rates(tmp_path: Path) -> None:
    class Stops(Plain):
        def training_step(self, batch, batch_idx):
            if self.trainer.global_step == 3:
                raise RuntimeError("stopped")
            return super().training_step(batch, batch_idx)

    keep = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=2, save_top_k=-1, save_on_exception=True)
    with pytest.raises(RuntimeError, match="stopped"):
        fit(tmp_path, Stops("sgd"), prune(schedule=0), RecoverySchedule(), keep)
    files = sorted(tmp_path.glob("*.ckpt"))
    assert len(files) == 2
    for file in files:
        (state,) = torch.load(file, weights_only=False)["optimizer_states"]
        assert [group["lr"] for group in state["param_groups"]] == [1e-2, 1e-2]


def test_rates_are_multiplied_with_the_share_that_a_test_finds(tmp_path: Path) -> None:
    """Each surgery starts a new test, whose steps are visible only in the optimizer itself."""
    schedule, watch, seen = RecoverySchedule(2, decay=1.0), Watch(), []

    class Seen(pl.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            seen.append((watch.taken[-1][0], float(trainer.callback_metrics["recovery_factor"])))

    fit(tmp_path, Plain("sgd"), prune(**TWICE), schedule, watch, Seen(), epochs=6, data=loader(16))
    shares = schedule.state_dict()["shares"]
    assert list(shares) == [1, 2]
    first, second = (np.multiply(shares[i], closed_form(steps, 2)) for i, steps in ((1, 8), (2, 2)))
    factors = np.array([1, 1, *first, *second])
    assert np.allclose([factor for _, factor in seen], factors)
    own = np.array(watch.found)[:, 0, 0]
    assert np.allclose([taken for taken, _ in seen], own * factors)


@pytest.mark.slow
def test_a_test_leaves_the_fit_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the tested share given by hand, a fit without a test has the same bits; the step draws noise."""
    schedule, left = RecoverySchedule(2), Plain("adamw")
    right = copy.deepcopy(left)
    fit(tmp_path / "tested", left, prune(), schedule, epochs=3)
    (share,) = schedule.state_dict()["shares"].values()
    monkeypatch.setattr(recovery_schedule, "best_share_in_trainer", lambda *args: share)
    fit(tmp_path / "given", right, prune(), RecoverySchedule(2), epochs=3)
    assert_same(left, right)


def test_gradients_are_clipped_in_a_test_as_in_the_fit(tmp_path: Path) -> None:
    """A module with zeroed gradients learns at no share: the rate stays whole, and a value is logged once a step."""

    class Clipped(Plain):
        def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
            assert (gradient_clip_val, gradient_clip_algorithm) == (0.5, "value")
            self.log("clipped", 1.0, reduce_fx="sum", on_step=False, on_epoch=True)
            optimizer.zero_grad()

    schedule, module = RecoverySchedule(), Clipped("sgd")
    runner = fit(tmp_path, module, prune(), schedule, epochs=3, gradient_clip_val=0.5, gradient_clip_algorithm="value")
    assert schedule.state_dict()["shares"] == {1: 1.0}
    assert runner.callback_metrics["clipped"] == PER_EPOCH


def test_nothing_is_tested_by_hand_or_in_a_dry_run(tmp_path: Path) -> None:
    for name, module, settings in (("hand", Manual(), {}), ("dry", Plain("sgd"), {"fast_dev_run": True})):
        schedule = RecoverySchedule()
        fit(tmp_path / name, module, prune(schedule=0), schedule, **settings)
        assert "shares" not in schedule.state_dict()
