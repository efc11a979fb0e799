"""A fit that is interrupted while it plans goes on behind the last result once it is begun again."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from cases.depth.interrupted import Interrupts
from cases.models.habits import Plain
from cases.trainers import REMOVE, assert_same, fit, prune

from prunerecover import Budget, Prune

CALLBACKS: dict[str, Callable[..., pl.Callback]] = {
    "depth": partial(prune, remove=REMOVE, importance="output_divergence"),
    "joint": partial(Prune, Budget(macs=0.3), calibration=16, schedule=1),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLBACKS)
def test_it_ends_as_one_that_was_left_alone(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(**how: object) -> Plain:
        torch.manual_seed(0)
        module = Plain()
        fit(tmp_path, module, CALLBACKS[name](**how))
        return module

    alone = run()
    interrupts = Interrupts(monkeypatch)
    interrupts.begin(2)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        run(store=tmp_path / "planning")
    interrupts.begin()
    assert_same(run(store=tmp_path / "planning"), alone)
    rest = interrupts.computed
    interrupts.begin()
    assert_same(run(store=tmp_path / "again"), alone)
    assert interrupts.computed == rest + 2
