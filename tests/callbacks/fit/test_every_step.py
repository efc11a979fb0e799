"""Any file of Lightning can be resumed from: after each step, including the last of an epoch, and after each epoch."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from cases.every_step import EPOCHS, STEPS, fit
from cases.models.habits import Plain, loader
from cases.trainers import assert_same

from prunerecover import Budget
from prunerecover.callbacks import (
    DepthPrune,
    DistillRecover,
    LoRARecover,
    Prune,
    PruneReport,
    RecoverySchedule,
    WidthPrune,
)
from prunerecover.callbacks.ledger.ledger import Ledger

SETTINGS = {"calibration": 16, "merge": "never"}


def depth():
    schedule = {"start": 1, "every": 1, "step": 1}
    return DepthPrune(remove={"attention": 1, "activation": 2}, schedule=schedule, **SETTINGS)


def width(start):
    return WidthPrune(Budget(macs=0.2), schedule={"start": start}, **SETTINGS)


def both():
    return Prune(Budget(macs=0.2), kinds=("attention", "neuron"), schedule={"start": 1}, **SETTINGS)


def lora():
    return LoRARecover(rank=2, dropout=0.1, start=1)


ALL = {
    "depth": lambda: [depth()],
    "depth and width": lambda: [both()],
    "all": lambda: [
        *(lora(), depth(), width(start=2), DistillRecover(features=True), RecoverySchedule(warmup=3)),
        PruneReport(pairs=2),
    ],
}
PARTS = {"depth and width": 4, "all": 4}  # divisors of the files to resume from; 2 by default


def resumed_equals_uninterrupted(folder: Path, name: str, pattern: str, files: int, **settings: Any) -> None:
    """Try all files, or a seeded sample for each set of callbacks."""
    whole = fit(folder / "whole", ALL[name], **settings)
    found = sorted((folder / "whole").glob(pattern))
    assert len(found) == files
    for file in random.Random(name).sample(found, min(files, max(3, files // PARTS.get(name, 2)))):
        resumed = fit(folder / file.stem, ALL[name], file, **settings)
        assert Ledger.of(resumed).removed_units == Ledger.of(whole).removed_units, file.stem
        assert_same(whole, resumed)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_from_any_step_and_epoch(name: str, tmp_path: Path) -> None:
    resumed_equals_uninterrupted(tmp_path, name, "*.ckpt", EPOCHS * STEPS + EPOCHS)


@pytest.mark.slow
def test_from_the_last_step_of_an_epoch_with_an_ordinary_loader(tmp_path: Path) -> None:
    resumed_equals_uninterrupted(tmp_path, "all", "step=[369].ckpt", EPOCHS, data=loader(8 * STEPS))


@pytest.mark.slow
def test_with_validation_in_the_middle_of_epochs(tmp_path: Path) -> None:
    resumed_equals_uninterrupted(tmp_path, "all", "*.ckpt", EPOCHS * STEPS + EPOCHS, val_check_interval=2)


@pytest.mark.slow
def test_with_a_scheduler_that_asks_for_the_number_of_steps(tmp_path: Path) -> None:
    """Lightning has made the loaders by then, and does not restore the loaders' state from the file."""
    one_cycle = {"make": lambda: Plain(scheduler="onecycle")}
    resumed_equals_uninterrupted(tmp_path, "depth", "step=[24].ckpt", 2, **one_cycle)


@pytest.mark.slow
def test_resumed_twice(tmp_path: Path) -> None:
    """Both times from the last step of an epoch, where Lightning's counts are off."""
    whole = fit(tmp_path / "whole", ALL["depth"])
    fit(tmp_path / "once", ALL["depth"], tmp_path / "whole" / "step=3.ckpt")
    assert_same(whole, fit(tmp_path / "twice", ALL["depth"], tmp_path / "once" / "step=6.ckpt"))
