"""Trials: what a Trainer run by hand gives, and nothing else moves; a search that was stopped goes on."""

from __future__ import annotations

import json
import logging
import math
import os
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
import torch.distributed as dist
from engine_cases import equal, unchanged
from habits import Compiled, Manual, Plain, TwoNetworks, WrappedCompiled, dataset, loader

from prunerecover import DepthPrune, DistillRecover, Plan, plan_depth
from prunerecover.boundary_search import Trial
from prunerecover.callbacks.ledger import Ledger
from prunerecover.callbacks.trial_records import read_records
from prunerecover.callbacks.trials import TrialRunner, TrialSettings

LOSS = TrialSettings(metric="val_loss", scale=1.0)  # a loss tells more apart than the share of 48 images
CALIBRATION = [dataset().tensors[0][:16]]
QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}


class Data(pl.LightningDataModule):
    """The tiny data; asks for its trainer, and frees what it holds when that is done, as users' own do."""

    def __init__(self) -> None:
        super().__init__()
        self.held: Any = None

    def setup(self, stage: str) -> None:
        self.held = dataset()

    def train_dataloader(self) -> Any:
        assert self.trainer is not None
        assert self.held is not None
        return loader()

    def val_dataloader(self) -> Any:
        return loader(shuffle=False)

    def teardown(self, stage: str) -> None:
        self.held = None


class Counted(Plain):
    """Counts its fits, and fails in one of them."""

    fits = 0
    fails_in = 0

    def on_train_start(self) -> None:
        type(self).fits += 1

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if type(self).fits == type(self).fails_in and batch_idx == 2:
            raise KeyError("of the user")


@pytest.fixture
def counted() -> Iterator[type[Counted]]:
    Counted.fits = Counted.fails_in = 0
    yield Counted
    Counted.fits = Counted.fails_in = 0


def seeded(make: type[pl.LightningModule] = Plain) -> pl.LightningModule:
    torch.manual_seed(0)
    return make()


def plan_of(**removed: int) -> Plan:
    """For the network that every module here starts from."""
    return plan_depth(seeded().net, remove=removed, batches=CALIBRATION, search="one_shot")


@pytest.fixture(scope="module")
def trials() -> list[Trial]:
    """Three trials: attentions, activations and both."""
    plans = (plan_of(attention=2), plan_of(activation=2), plan_of(attention=1, activation=1))
    return [Trial(plan, seed) for seed, plan in enumerate(plans)]


def by_hand(module: pl.LightningModule, trial: Trial, *callbacks: pl.Callback, **settings: Any) -> pl.Trainer:
    """A run without a TrialRunner; trains `module` itself."""
    torch.manual_seed(trial.seed)
    random.seed(trial.seed)
    np.random.seed(trial.seed)
    runner = pl.Trainer(
        **{"max_epochs": 1, "accelerator": "cpu", "num_sanity_val_steps": 0, **QUIET, **settings},
        callbacks=[DepthPrune(plan=trial.plan, target="net", merge="never"), *callbacks] if trial.plan.edits else [],
    )
    runner.fit(module, datamodule=Data())
    return runner


@pytest.fixture(scope="module")
def losses(trials: list[Trial]) -> list[float]:
    """Of the trials, by hand."""
    return [float(by_hand(seeded(), t, DistillRecover(target="net")).callback_metrics["val_loss"]) for t in trials]


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
    assert [(r.attention, r.activation, r.seed) for r in runner.records] == [(2, 0, 0), (0, 2, 1), (1, 1, 2)]
    assert all(r.seconds > 0 and r.peak_memory_bytes > 2**20 for r in runner.records)


@pytest.mark.parametrize("dense", [True, False])
def test_without_distillation_and_for_longer(tmp_path: Path, trials: list[Trial], dense: bool) -> None:
    """The dense model is trained alike, but for the surgery and the teacher."""
    trial = Trial(Plan(), 4) if dense else trials[0]
    settings = replace(LOSS, epochs=2, distill=dense, trainer={"limit_train_batches": 3})
    runner = TrialRunner(seeded(), Data(), tmp_path / "trials.jsonl", settings)
    expected = by_hand(seeded(), trial, max_epochs=2, limit_train_batches=3).callback_metrics["val_loss"]
    assert runner([trial]) == [float(expected)]


def test_trials_of_other_hyperparameters_or_calibration_are_run_again(tmp_path: Path, trials: list[Trial]) -> None:
    def run(trial: Trial, rate: float) -> list[str]:
        module = seeded()
        module.save_hyperparameters({"rate": rate})
        runner = TrialRunner(module, Data(), tmp_path / "trials.jsonl", LOSS)
        runner([trial])
        return [record.key for record in runner.records]

    more = trials[0].plan.model_copy(update={"evidence": {**trials[0].plan.evidence, "samples": 1000}})
    keys = run(trials[0], 0.1) + run(trials[0], 0.2) + run(replace(trials[0], plan=more), 0.1)
    assert len(set(keys)) == 3
    assert run(trials[0], 0.1) == keys[:1]
    assert len((tmp_path / "trials.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize("loss", [math.nan, 101.0])
def test_what_is_no_percentage_is_refused_and_not_kept(tmp_path: Path, trials: list[Trial], loss: float) -> None:
    class Odd(Plain):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("val_loss", loss if self.trainer.state.fn == "fit" else 1.0)

    runner = TrialRunner(seeded(Odd), Data(), tmp_path / "trials.jsonl", LOSS)
    with pytest.raises(
        ValueError, match=f"'val_loss' times scale=1 to be a percentage, but the module logged {loss:g}"
    ):
        runner(trials[:1])
    assert not (tmp_path / "trials.jsonl").exists()


def test_scale_brings_the_metric_to_percent(tmp_path: Path, trials: list[Trial]) -> None:
    hand = by_hand(seeded(), trials[0], DistillRecover(target="net")).callback_metrics["val_acc"]
    share, percent = (
        TrialRunner(seeded(), Data(), tmp_path / f"{scale}.jsonl", TrialSettings("val_acc", scale))(trials[:1])
        for scale in (1.0, 100.0)
    )
    assert share == [float(hand)]
    assert percent == [float(hand) * 100]
    assert 10 < percent[0] <= 100


@pytest.mark.slow
@pytest.mark.parametrize("make", [Compiled, WrappedCompiled])
def test_trials_of_a_compiled_network_do_not_train_the_original(
    tmp_path: Path, trials: list[Trial], losses: list[float], make: type[pl.LightningModule]
) -> None:
    module = seeded(make)
    with unchanged(module):
        assert TrialRunner(module, Data(), tmp_path / "trials.jsonl", LOSS)(trials[:1]) == pytest.approx(losses[:1])
    compiled = [inner for inner in module.modules() if inner._compiled_call_impl is not None]
    assert len(compiled) == (make is Compiled)  # as before


@pytest.mark.slow
def test_trials_of_a_compiled_module_do_not_train_the_original(
    tmp_path: Path, trials: list[Trial], losses: list[float]
) -> None:
    module = seeded()
    module.compile(backend="eager")
    with unchanged(module):
        assert TrialRunner(module, Data(), tmp_path / "trials.jsonl", LOSS)(trials[:1]) == pytest.approx(losses[:1])
    assert module._compiled_call_impl is not None


def test_manual_optimization(tmp_path: Path, trials: list[Trial]) -> None:
    module = seeded(Manual)
    expected = by_hand(seeded(Manual), trials[2], DistillRecover(target="net")).callback_metrics["val_loss"]
    with unchanged(module):
        assert TrialRunner(module, Data(), tmp_path / "trials.jsonl", LOSS)(trials[2:]) == [float(expected)]
    assert module.steps == 0


class Searching(pl.Callback):
    """Makes trials of the module that is being trained, in the middle of its fit."""

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
    """A fit of two epochs, and all that it leaves."""
    module, data = seeded(), Data()
    pl.seed_everything(3, verbose=False)
    runner = pl.Trainer(
        max_epochs=2,
        accelerator="cpu",
        callbacks=list(callbacks),
        **QUIET,
        reload_dataloaders_every_n_epochs=1,
    )
    runner.fit(module, datamodule=data)
    assert module._trainer is data.trainer is runner
    return {
        "weights": {name: value.clone() for name, value in module.state_dict().items()},
        "optimizer": runner.optimizers[0].state_dict()["state"],
        "metrics": {name: value.clone() for name, value in runner.callback_metrics.items()},
        "steps": runner.global_step,
        "random": (torch.get_rng_state(), random.getstate(), np.random.get_state()),
    }


def test_trials_inside_a_fit_change_nothing_of_it(tmp_path: Path, trials: list[Trial]) -> None:
    searching = Searching(tmp_path / "trials.jsonl", trials[:2])
    whole, searched = outer(), outer(searching)
    assert len(searching.found) == 2
    assert [key for key in whole if not equal(whole[key], searched[key])] == []
    assert whole["steps"] == 12


# Going on from the records.


def test_what_is_done_is_not_done_again(
    tmp_path: Path, trials: list[Trial], losses: list[float], counted: type[Counted]
) -> None:
    """An exception in the second trial leaves the first; another search runs the two others."""
    store = tmp_path / "deep" / "trials.jsonl"
    counted.fails_in = 2
    module = seeded(counted)
    with unchanged(module), pytest.raises(KeyError, match="of the user"):
        TrialRunner(module, Data(), store, LOSS)(trials)
    assert [record.accuracy for record in read_records(store).values()] == losses[:1]

    counted.fits = counted.fails_in = 0
    runner = TrialRunner(seeded(counted), Data(), store, LOSS)
    assert runner(trials) == losses
    assert counted.fits == 2
    assert runner(trials[::-1]) == losses[::-1]
    assert [record.accuracy for record in runner.records] == [*losses, *losses[::-1]]
    assert TrialRunner(seeded(counted), Data(), store, LOSS)([trials[2], trials[2]]) == [losses[2]] * 2
    assert counted.fits == 2
    assert len(store.read_text().splitlines()) == 3


def test_known_trials_need_no_data(tmp_path: Path, trials: list[Trial], losses: list[float]) -> None:
    store = tmp_path / "trials.jsonl"
    TrialRunner(seeded(), Data(), store, LOSS)(trials[:1])
    assert TrialRunner(seeded(), None, store, LOSS)(trials[:1]) == losses[:1]


def other_weights() -> pl.LightningModule:
    module = seeded(Counted)
    with torch.no_grad():
        module.net.head.bias[0] += 1
    return module


@pytest.mark.parametrize("change", ["seed", "weights", "settings", "plan"])
def test_a_trial_that_differs_is_run(tmp_path: Path, counted: type[Counted], change: str) -> None:
    store, trial, settings = (
        tmp_path / "trials.jsonl",
        Trial(Plan(), 0),
        replace(LOSS, trainer={"limit_train_batches": 1}),
    )
    TrialRunner(seeded(counted), Data(), store, settings)([trial])
    module = other_weights() if change == "weights" else seeded(counted)
    other = replace(settings, trainer={"limit_train_batches": 2}) if change == "settings" else settings
    trial = {"seed": Trial(Plan(), 1), "plan": Trial(plan_of(attention=1), 0)}.get(change, trial)
    TrialRunner(module, Data(), store, other)([trial])
    assert counted.fits == 2
    assert len(read_records(store)) == 2


def test_records_are_lines_of_json(tmp_path: Path, trials: list[Trial], losses: list[float]) -> None:
    """Each is on the disk before the next trial begins."""
    store = tmp_path / "trials.jsonl"
    seen: list[int] = []

    class Looking(Plain):
        def on_train_start(self) -> None:
            seen.append(len(store.read_text().splitlines()) if store.exists() else 0)

    TrialRunner(seeded(Looking), Data(), store, LOSS)(trials)
    assert seen == [0, 1, 2]
    lines = [json.loads(line) for line in store.read_text().splitlines()]
    assert [line["accuracy"] for line in lines] == losses
    assert [line["attention"] for line in lines] == [2, 0, 1]
    assert [line["activation"] for line in lines] == [0, 2, 1]


# Ranks. Two of them are in test_boundary_cli.py.


def test_within_a_trial_a_rank_is_alone(tmp_path: Path, trials: list[Trial]) -> None:
    """Otherwise its metrics would be averaged with those of other models."""
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


# Errors.


def test_a_missing_metric_is_found_before_anything_is_trained(
    tmp_path: Path, trials: list[Trial], counted: type[Counted]
) -> None:
    store, module = tmp_path / "trials.jsonl", seeded(counted)
    with (
        unchanged(module),
        pytest.raises(ValueError, match="log 'val_top1' in validation, but it logged val_acc, val_loss. Name another"),
    ):
        TrialRunner(module, Data(), store)(trials)
    assert counted.fits == 0
    assert not store.exists()


def test_a_module_that_logs_nothing(tmp_path: Path, trials: list[Trial]) -> None:
    class Silent(Plain):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            pass

    with pytest.raises(ValueError, match="but it logged nothing"):
        TrialRunner(seeded(Silent), Data(), tmp_path / "trials.jsonl")(trials)


def test_trials_of_no_epochs_are_refused() -> None:
    with pytest.raises(ValueError, match="trials of at least 1 epoch, but got 0"):
        TrialSettings(epochs=0)


@pytest.mark.parametrize("name", ["max_epochs", "callbacks", "accelerator", "devices", "strategy", "logger"])
def test_arguments_of_the_trainer_that_trials_set_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"Expected no {name} among the trials' Trainer arguments: trials set them"):
        TrialSettings(trainer={name: 1, "limit_train_batches": 3})


def test_two_candidates_need_a_target(tmp_path: Path, trials: list[Trial]) -> None:
    module = seeded(TwoNetworks)
    with pytest.raises(ValueError, match="one supported network inside TwoNetworks, but found 2: net, other"):
        TrialRunner(module, Data(), tmp_path / "trials.jsonl", LOSS)
    runner = TrialRunner(module, Data(), tmp_path / "trials.jsonl", LOSS, target="net")
    expected = by_hand(seeded(TwoNetworks), trials[0], DistillRecover(target="net")).callback_metrics["val_loss"]
    assert runner(trials[:1]) == [float(expected)]
