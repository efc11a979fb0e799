"""Trials equal runs of a Trainer by hand, without side effects; the start of a fit inside a command."""

from __future__ import annotations

import logging
import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
import torch.distributed as dist
from cases.engine import equal, unchanged
from cases.models.habits import Compiled, Plain
from cases.trials import CALIBRATION, LOSS, QUIET, Data, by_hand, seeded
from torch.utils.data import DataLoader

from prunerecover import Plan, plan_depth
from prunerecover.boundary.search import Trial
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.callbacks.trials.nested import at_start_of_fit
from prunerecover.callbacks.trials.runner import TrialRunner
from prunerecover.recipes.data.digits import DigitsData


def test_trials_equal_runs_by_hand_and_change_nothing(
    tmp_path: Path, trials: list[Trial], losses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PL_GLOBAL_SEED", raising=False)
    module, data = seeded().eval(), Data()
    module.net.train()
    runner = TrialRunner(module, data, tmp_path / "trials.jsonl", LOSS)
    with unchanged(module):
        found = runner(trials)
    assert found == losses
    assert len(set(found)) == 3
    assert module._trainer is None
    assert Ledger.of(module).events == []
    assert data.trainer is None
    assert "PL_GLOBAL_SEED" not in os.environ
    assert logging.getLogger("lightning.pytorch").level != logging.WARNING
    assert [(dict(r.removed), r.seed) for r in runner.records] == [
        ({"attention": 2}, 0),
        ({"activation": 2}, 1),
        ({"activation": 1, "attention": 1}, 2),
    ]
    assert all(r.seconds > 0 and r.peak_memory_bytes > 2**20 for r in runner.records)


@pytest.mark.parametrize("dense", [True, False])
def test_without_distillation_and_for_longer(tmp_path: Path, trials: list[Trial], dense: bool) -> None:
    """The dense model is trained alike, but for the surgery and the teacher."""
    trial = Trial(Plan(), 4) if dense else trials[0]
    settings = replace(LOSS, epochs=2, distill=dense, trainer={"limit_train_batches": 3})
    runner = TrialRunner(seeded(), Data(), tmp_path / "trials.jsonl", settings)
    expected = by_hand(seeded(), trial, max_epochs=2, limit_train_batches=3).callback_metrics["val_loss"]
    assert runner([trial]) == [float(expected)]


@pytest.mark.slow
def test_trials_leave_a_compiled_network_alone(tmp_path: Path, trials: list[Trial], losses: list[float]) -> None:
    module = seeded(Compiled)
    with unchanged(module):
        assert TrialRunner(module, Data(), tmp_path / "trials.jsonl", LOSS)(trials[:1]) == pytest.approx(losses[:1])
    compiled = [inner for inner in module.modules() if inner._compiled_call_impl is not None]
    assert len(compiled) == 1  # as before


class Searching(pl.Callback):
    """Makes trials of the module in the middle of the module's own fit."""

    def __init__(self, store: Path, trials: list[Trial]) -> None:
        self.store, self.trials, self.found = store, trials, []

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.current_epoch == 1:
            runner = TrialRunner(pl_module, trainer.datamodule, self.store, LOSS)
            self.found = runner([replace(trial, plan=self._plan(trial, pl_module)) for trial in self.trials])

    def _plan(self, trial: Trial, module: pl.LightningModule) -> Plan:
        """Of the same units, for the weights of now."""
        return plan_depth(module.net, remove={k: len(v) for k, v in trial.plan.removed.items()}, batches=CALIBRATION)


def outer(*callbacks: pl.Callback) -> dict[str, Any]:
    """Return all results of a fit of two epochs."""
    module, data = seeded(), Data()
    pl.seed_everything(3, verbose=False)
    settings = {"max_epochs": 2, "accelerator": "cpu", "reload_dataloaders_every_n_epochs": 1, **QUIET}
    runner = pl.Trainer(callbacks=[*callbacks], **settings)
    runner.fit(module, datamodule=data)
    assert module._trainer is data.trainer is runner
    return {
        "weights": {name: value.clone() for name, value in module.state_dict().items()},
        "optimizer": runner.optimizers[0].state_dict()["state"],
        "metrics": {name: value.clone() for name, value in runner.callback_metrics.items()},
        "steps": runner.global_step,
        "random": (torch.get_rng_state(), random.getstate(), np.random.get_state()),
    }


@pytest.mark.slow
def test_trials_inside_a_fit_change_nothing_of_it(tmp_path: Path, trials: list[Trial]) -> None:
    searching = Searching(tmp_path / "trials.jsonl", trials[:2])
    whole, searched = outer(), outer(searching)
    assert len(searching.found) == 2
    assert [key for key in whole if not equal(whole[key], searched[key])] == []
    assert whole["steps"] == 12


# Ranks. Two of them are in tests/recipes/plan_methods/test_boundary.py.


def test_within_a_trial_a_rank_is_alone(tmp_path: Path, trials: list[Trial]) -> None:
    """Otherwise the trial's metrics would be averaged with other models'."""
    seen: list[bool] = []

    class Looking(Plain):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            seen.append(dist.is_initialized())
            super().validation_step(batch, batch_idx)

        def on_train_end(self) -> None:
            if len(seen) > 10:
                raise KeyError("of the user")

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        group = dist.group.WORLD
        runner = TrialRunner(seeded(Looking), Data(), tmp_path / "trials.jsonl", LOSS)
        runner(trials[:1])
        assert dist.group.WORLD is group
        with pytest.raises(KeyError, match="of the user"):
            runner(trials)
        assert dist.group.WORLD is group
    finally:
        dist.destroy_process_group()
    assert seen
    assert not any(seen)


def test_start_of_a_fit_trains_nothing_and_leaves_the_module_alone() -> None:
    module, data = Plain(), DigitsData()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    state = torch.get_rng_state()
    seen: list[pl.LightningModule] = []

    def look(trainer: pl.Trainer, copied: pl.LightningModule) -> int:
        seen.append(copied)
        assert trainer.optimizers
        assert trainer.state.fn == "fit"
        torch.rand(3)
        return trainer.global_step

    assert at_start_of_fit(module, data, look) == 0
    (copied,) = seen
    assert copied is not module
    assert all(torch.equal(value, copied.state_dict()[name]) for name, value in before.items())
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert module._trainer is None


def test_no_fit_starts_without_training_data() -> None:
    class Empty(DigitsData):
        def train_dataloader(self) -> DataLoader[Any]:
            return DataLoader([])

    with pytest.raises(ValueError, match="Expected training data for Plain, but its train dataloader has no batch"):
        at_start_of_fit(Plain(), Empty(), lambda trainer, module: 0)
