"""A run that is killed at seeded moments and resumed equals one that was left alone: two kills; ten in benchmarks/."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import pytest
import torch
from cases.models.habits import Plain
from cases.paths import ROOT
from cases.trainers import fit, prune

from prunerecover.checkpoint.ledger_record import KEY

SCRIPT = ROOT / "benchmarks" / "end_to_end" / "kill_and_resume.py"


def module():
    spec = importlib.util.spec_from_file_location("kill_and_resume", SCRIPT)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0])
def test_killed_twice_equals_uninterrupted(tmp_path, seed):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    arguments = ["--kills", "2", "--epochs", "6", "--seed", str(seed), "--folder", str(tmp_path)]
    command = [sys.executable, str(SCRIPT), *arguments, "--result", str(tmp_path / "result.json")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-6000:]
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["bitwise_equal"]
    assert result["same_surgeries"]
    assert len(result["events"]) == 3
    assert len(result["kills"]) == 2
    for kill in result["kills"]:  # nothing is lost but the steps since the last end of an epoch
        in_epoch = kill["killed_at"] % result["steps_per_epoch"]
        assert kill["lost"] == (in_epoch or result["steps_per_epoch"])
        assert kill["kept"] % result["steps_per_epoch"] == 0


def test_a_cut_off_checkpoint_is_passed_over(tmp_path):
    """The choice of a checkpoint to resume from takes the newest one that can be read."""
    from lightning.pytorch.callbacks import ModelCheckpoint

    newest = module().newest
    assert newest(tmp_path) is None
    fit(tmp_path, Plain(), prune(), ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1))
    assert newest(tmp_path) == tmp_path / "epoch=1.ckpt"
    content = (tmp_path / "epoch=1.ckpt").read_bytes()
    (tmp_path / "epoch=1.ckpt").write_bytes(content[: len(content) // 2])
    assert newest(tmp_path) == tmp_path / "epoch=0.ckpt"
    assert torch.load(newest(tmp_path), weights_only=True)[KEY]["events"] == []
