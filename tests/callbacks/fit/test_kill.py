"""A killed or interrupted run, resumed, equals an undisturbed run: four kills here, fifty in benchmarks/."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from cases.depth.interrupted import Interrupts
from cases.models.habits import Plain
from cases.paths import ROOT
from cases.trainers import REMOVE, assert_same, every_epoch, fit, prune

from benchmarks.end_to_end.kill_and_resume import newest
from benchmarks.runner.rows import Results
from prunerecover import Budget, Prune
from prunerecover.checkpoint.ledger_record import KEY


def killed(tmp_path, *arguments):
    """Return the result of a killed and resumed run."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    script = ["-m", "benchmarks.end_to_end.kill_and_resume", *arguments, "--out", str(tmp_path)]
    command = [sys.executable, *script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-6000:]
    (row,) = Results.read("kill_and_resume", tmp_path).rows
    return row


@pytest.mark.slow
def test_killed_and_resumed_equals_uninterrupted(tmp_path):
    result = killed(tmp_path, "--kills", "4", "--epochs", "8", "--seed", "4")
    assert result["bitwise_equal"]
    assert result["same_surgeries"]
    assert len(result["events"]) == 5
    assert len(result["kills_one_by_one"]) == 4
    for kill in result["kills_one_by_one"]:  # only a step without a written checkpoint is lost
        assert kill["lost"] == (kill["moment"] in ("batch", "saving"))
    while_planning = [kill["found"] for kill in result["kills_one_by_one"] if kill["moment"] == "planning"]
    assert while_planning  # planning results before the kill are kept
    assert all(while_planning)


def test_a_cut_off_checkpoint_is_passed_over(tmp_path):
    """The newest readable checkpoint is chosen for a resume."""
    assert newest(tmp_path) is None
    fit(tmp_path, Plain(), prune(), every_epoch(tmp_path))
    assert newest(tmp_path) == tmp_path / "epoch=1.ckpt"
    content = (tmp_path / "epoch=1.ckpt").read_bytes()
    (tmp_path / "epoch=1.ckpt").write_bytes(content[: len(content) // 2])
    assert newest(tmp_path) == tmp_path / "epoch=0.ckpt"
    assert torch.load(newest(tmp_path), weights_only=True)[KEY]["events"] == []


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
