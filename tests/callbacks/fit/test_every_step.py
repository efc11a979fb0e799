"""Any file of Lightning can be resumed from: after each step, including the last of an epoch, and after each epoch."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from cases.every_step import EPOCHS, STEPS, fit
from cases.fits.quality import Sized, one_by_one
from cases.models.habits import Plain, loader
from cases.trainers import assert_same

from prunerecover import Budget, Quality
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


def recovery(warmup):
    return [DistillRecover(features=True), RecoverySchedule(warmup=warmup), PruneReport(pairs=2)]


def everything():
    return [lora(), depth(), width(start=2), *recovery(3)]


def everything_by_quality():
    return [lora(), one_by_one(), *recovery(2)]


def back_to_the_dense():
    return [one_by_one(drop=0.5), DistillRecover(), LoRARecover(rank=2, dropout=0.1)]


EVERY, LONGER = EPOCHS * STEPS + EPOCHS, {"make": Sized, "epochs": 5}
ONE_CYCLE = {"make": lambda: Plain(scheduler="onecycle")}
RISES = Quality("val_loss", drop=0.0, mode="min")
CALLBACKS = {  # callbacks, files, their number, and settings of the fit
    "depth": (lambda: [depth()], "*step=*.ckpt", EVERY, {}),
    "depth and width": (lambda: [both()], "*step=*.ckpt", EVERY, {}),
    "all": (everything, "*step=*.ckpt", EVERY, {}),
}
FITS = {
    "the last steps of epochs, an ordinary loader": (everything, "step=[369].ckpt", 3, {"data": loader(8 * STEPS)}),
    "validation in the middle of epochs": (everything, "*step=*.ckpt", EVERY, {"val_check_interval": 2}),
    # Lightning has made the loaders by the time of the question, and does not restore their state from the file.
    "a scheduler that asks for the number of steps": (lambda: [depth()], "step=[24].ckpt", 2, ONE_CYCLE),
}
QUALITIES = {
    "back to the dense one": (back_to_the_dense, "*step=*.ckpt", 5 * STEPS + 5, LONGER),
    "width": (lambda: [WidthPrune(RISES, step=0.2, **SETTINGS)], "*step=*.ckpt", 5 * STEPS + 5, LONGER),
    "all": (everything_by_quality, "*step=*.ckpt", 5 * STEPS + 5, LONGER),
}


def resumed_equals_uninterrupted(folder: Path, name: str, case: Any) -> None:
    """Try three of the files, a seeded sample for each case."""
    callbacks, pattern, number, settings = case
    whole = fit(folder / "whole", callbacks, **settings)
    found = sorted((folder / "whole").glob(pattern))
    assert len(found) == number
    for file in random.Random(name).sample(found, min(number, 3)):
        resumed = fit(folder / file.stem, callbacks, file, **settings)
        for kept in ("removed_units", "quality"):
            assert getattr(Ledger.of(resumed), kept) == getattr(Ledger.of(whole), kept), file.stem
        assert_same(whole, resumed)


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLBACKS)
def test_from_any_step_and_epoch(name: str, tmp_path: Path) -> None:
    resumed_equals_uninterrupted(tmp_path, name, CALLBACKS[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", FITS)
def test_in_other_fits(name: str, tmp_path: Path) -> None:
    resumed_equals_uninterrupted(tmp_path, name, FITS[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", QUALITIES)
def test_until_a_metric_falls(name: str, tmp_path: Path) -> None:
    resumed_equals_uninterrupted(tmp_path, name, QUALITIES[name])


@pytest.mark.slow
def test_resumed_twice(tmp_path: Path) -> None:
    """Both times from the last step of an epoch, where Lightning's counts are off."""
    once = CALLBACKS["depth"][0]
    whole = fit(tmp_path / "whole", once)
    fit(tmp_path / "once", once, tmp_path / "whole" / "step=3.ckpt")
    assert_same(whole, fit(tmp_path / "twice", once, tmp_path / "once" / "step=6.ckpt"))
