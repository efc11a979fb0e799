"""Steps that are taken back, resumed from any file: bit for bit as in a fit that was left alone."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from cases import every_step
from cases.fits.quality import Sized, one_by_one, trail_of
from cases.trainers import assert_same

from prunerecover import DistillRecover, LoRARecover, Prune, PruneReport, Quality, RecoverySchedule, WidthPrune

EPOCHS = 5
SETTINGS = {"calibration": 16, "merge": "never"}
RISES = Quality("val_loss", drop=0.0, mode="min")
ALL = {
    "kept, taken back": lambda: [one_by_one()],
    "back to the dense one": lambda: [one_by_one(drop=0.5), DistillRecover(), LoRARecover(rank=2, dropout=0.1)],
    "width": lambda: [WidthPrune(RISES, step=0.2, **SETTINGS)],
    "depth and width": lambda: [Prune(RISES, step=0.2, **SETTINGS)],
    "all": lambda: [
        LoRARecover(rank=2, dropout=0.1, start=1),
        one_by_one(),
        DistillRecover(features=True),
        RecoverySchedule(warmup=2),
        PruneReport(pairs=2),
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_from_any_step_and_epoch(name: str, tmp_path: Path) -> None:
    whole = every_step.fit(tmp_path / "whole", ALL[name], make=Sized, epochs=EPOCHS)
    found = sorted((tmp_path / "whole").glob("*-step=*.ckpt")) + sorted((tmp_path / "whole").glob("step=*.ckpt"))
    assert len(found) == EPOCHS * every_step.STEPS + EPOCHS
    for file in random.Random(name).sample(found, 6):
        resumed = every_step.fit(tmp_path / file.stem, ALL[name], file, make=Sized, epochs=EPOCHS)
        assert trail_of(resumed) == trail_of(whole), file.stem
        assert_same(whole, resumed)
