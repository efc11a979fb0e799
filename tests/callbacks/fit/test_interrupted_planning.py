"""A fit that is interrupted while it plans goes on behind the last result once it is begun again."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from cases.depth.interrupted import Interrupts
from cases.models.habits import Plain
from cases.trainers import REMOVE, assert_same, fit, prune


@pytest.mark.slow
def test_it_ends_as_one_that_was_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(**how: object) -> Plain:
        torch.manual_seed(0)
        module = Plain()
        fit(tmp_path, module, prune(remove=REMOVE, importance="output_divergence", **how))
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
