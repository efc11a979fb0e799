"""A stopped search continues from the file of records, and impossible trials are refused by message."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from cases.engine import unchanged
from cases.models.habits import Plain, TwoNetworks
from cases.trials import LOSS, Data, by_hand, plan_of, seeded

from prunerecover import DistillRecover, Plan
from prunerecover.boundary.search import Trial
from prunerecover.callbacks.trials.records import TrialRecord, append_record, read_records, table
from prunerecover.callbacks.trials.runner import TrialRunner


class Counted(Plain):
    """Counts fits, and fails in a chosen fit."""

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


# Going on from the records.


def test_trials_are_made_once(tmp_path: Path, trials: list[Trial], losses: list[float], counted: type[Counted]) -> None:
    """An exception in the second trial keeps the first; the next search runs the remaining two."""
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


def other_weights() -> pl.LightningModule:
    module = seeded(Counted)
    with torch.no_grad():
        module.net.head.bias[0] += 1
    return module


@pytest.mark.parametrize("change", ["weights", "settings", "plan"])
def test_a_trial_that_differs_is_run(tmp_path: Path, counted: type[Counted], change: str) -> None:
    store, trial = tmp_path / "trials.jsonl", Trial(Plan(), 0)
    settings = replace(LOSS, trainer={"limit_train_batches": 1})
    TrialRunner(seeded(counted), Data(), store, settings)([trial])
    module = other_weights() if change == "weights" else seeded(counted)
    other = replace(settings, trainer={"limit_train_batches": 2}) if change == "settings" else settings
    trial = Trial(plan_of(attention=1), 0) if change == "plan" else trial
    TrialRunner(module, Data(), store, other)([trial])
    assert counted.fits == 2
    assert len(read_records(store)) == 2


# Errors.


def test_a_missing_metric_is_found_before_training(tmp_path: Path, trials: list[Trial], counted: type[Counted]) -> None:
    store, module = tmp_path / "trials.jsonl", seeded(counted)
    with unchanged(module), pytest.raises(ValueError, match="but it logged val_acc, val_loss. Name another"):
        TrialRunner(module, Data(), store)(trials)
    assert counted.fits == 0
    assert not store.exists()


@pytest.mark.parametrize("loss", [math.nan, 101.0])
def test_what_is_no_percentage_is_refused_and_not_kept(tmp_path: Path, trials: list[Trial], loss: float) -> None:
    class Odd(Plain):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("val_loss", loss if self.trainer.state.fn == "fit" else 1.0)

    runner = TrialRunner(seeded(Odd), Data(), tmp_path / "trials.jsonl", LOSS)
    with pytest.raises(ValueError, match=f"times scale=1 to be a percentage, but the module logged {loss:g}"):
        runner(trials[:1])
    assert not (tmp_path / "trials.jsonl").exists()


def test_a_module_that_logs_nothing(tmp_path: Path, trials: list[Trial]) -> None:
    class Silent(Plain):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            pass

    with pytest.raises(ValueError, match="but it logged nothing"):
        TrialRunner(seeded(Silent), Data(), tmp_path / "trials.jsonl")(trials)


def test_two_candidates_need_a_target(tmp_path: Path, trials: list[Trial]) -> None:
    module = seeded(TwoNetworks)
    with pytest.raises(ValueError, match="one supported network inside TwoNetworks, but found 2: net, other"):
        TrialRunner(module, Data(), tmp_path / "trials.jsonl", LOSS)
    runner = TrialRunner(module, Data(), tmp_path / "trials.jsonl", LOSS, target="net")
    expected = by_hand(seeded(TwoNetworks), trials[0], DistillRecover(target="net")).callback_metrics["val_loss"]
    assert runner(trials[:1]) == [float(expected)]


def record(key: str, accuracy: float = 50.0) -> TrialRecord:
    return TrialRecord(key, {"attention": 1, "activation": 2}, 0, accuracy, 60.0, 2**20)


@pytest.mark.parametrize("cut", [1, -1])
def test_a_line_that_was_cut_off_is_dropped_and_the_file_goes_on(tmp_path: Path, cut: int) -> None:
    store = tmp_path / "trials.jsonl"
    for key in ("a", "b"):
        append_record(store, 0, record(key))
    first, second = store.read_bytes().splitlines(keepends=True)
    store.write_bytes(first + second[:cut])
    assert read_records(store) == {"a": record("a")}
    for key in ("b", "c"):
        append_record(store, 0, record(key))
    assert read_records(store) == {key: record(key) for key in "abc"}


def test_every_rank_has_a_file_and_all_are_read(tmp_path: Path) -> None:
    store = tmp_path / "plan[1].trials.jsonl"
    assert read_records(store) == {}
    for rank in (1, 11):
        append_record(store, rank, record(f"of rank {rank}"))
    assert {file.name for file in tmp_path.iterdir()} == {"plan[1].trials.1.jsonl", "plan[1].trials.11.jsonl"}
    assert set(read_records(store)) == {"of rank 1", "of rank 11"}
    append_record(store, 0, record("of rank 0"))
    assert set(read_records(store)) == {"of rank 0", "of rank 1", "of rank 11"}


@pytest.mark.parametrize("line", ['{"key": "b"}', "step,loss", "[1, 2]"])
def test_a_foreign_line_is_refused(tmp_path: Path, line: str) -> None:
    store = tmp_path / "trials.jsonl"
    append_record(store, 0, record("a"))
    with store.open("a") as stream:
        stream.write(line + "\n")
    with pytest.raises(ValueError, match="Expected one trial per line in .*trials.jsonl, but got .* Move the file"):
        TrialRunner(Plain(), None, store)
    assert len(store.read_text().splitlines()) == 2


def test_a_file_of_the_first_version_is_read(tmp_path: Path) -> None:
    """The old file has separate counts of attentions and activations."""
    old = {"key": "a", "attention": 1, "activation": 2, "seed": 0, "accuracy": 50.0, "seconds": 60.0}
    (tmp_path / "trials.jsonl").write_text(json.dumps({**old, "peak_memory_bytes": 2**20}) + "\n")
    assert read_records(tmp_path / "trials.jsonl") == {"a": record("a")}


def test_the_table_has_a_column_per_kind() -> None:
    other = dataclasses.replace(record("b", 60.0), removed={"neuron": 9})
    head, _, *rows = table([record("a", 40.0), other]).splitlines()
    assert head.startswith("| attentions removed | activations removed | neurons removed | seed |")
    assert rows == ["| 0 | 0 | 9 | 0 | 60.00 | 1.0 | 1 MiB |", "| 1 | 2 | 0 | 0 | 40.00 | 1.0 | 1 MiB |"]
