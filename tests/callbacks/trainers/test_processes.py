"""transformers' Trainer on two ranks (CPU, gloo, torchrun), and killed in the middle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from cases.fits.transformers_fits import fit
from cases.fits.transformers_ranks import SETTINGS, callbacks, steady
from cases.paths import ROOT, TESTS

pytestmark = pytest.mark.slow  # starting processes takes longest
SCENARIOS = ("depth", "accumulated", "adapters", "width")


def started(*command: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "PL_", "MASTER_", "LOCAL_RANK"))}
    environment |= {"PYTHONPATH": f"{ROOT}{os.pathsep}{TESTS}", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    whole = [sys.executable, *command]
    return subprocess.run(whole, env=environment, capture_output=True, text=True, timeout=500, check=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def results(folder: Path) -> Any:
    script, result = TESTS / "cases/fits/transformers_ranks.py", folder / "result.json"
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    done = started(*torchrun, str(script), str(result), str(folder), *SCENARIOS)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return json.loads(result.read_text())


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_ranks_agree_after_every_step(results: Any, scenario: str) -> None:
    for run in results[scenario].values():
        assert run["agreed"] == run["steps"] > 0


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_resumed_ranks_end_where_uninterrupted_ones_do(results: Any, scenario: str) -> None:
    assert results[scenario]["resumed"]["digest"] == results[scenario]["whole"]["digest"]


@pytest.mark.parametrize(("scenario", "more"), [("depth", {}), ("accumulated", {"num_train_epochs": 8})])
def test_two_ranks_learn_as_one_process(results: Any, folder: Path, tmp_path: Path, scenario: str, more: Any) -> None:
    """From both ranks' samples: twice as many in a batch."""
    more = {"gradient_accumulation_steps": 2, **more} if more else {}
    alone = fit(tmp_path, *callbacks(), model=steady, per_device_train_batch_size=8, **{**SETTINGS, **more})
    found = torch.load(folder / scenario / "whole.pt", weights_only=True)
    assert found.keys() == alone.model.state_dict().keys()
    for name, value in alone.model.state_dict().items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-6)


def test_a_killed_fit_ends_as_one_that_was_left_alone(tmp_path: Path) -> None:
    script = str(TESTS / "cases/fits/transformers_killed.py")
    for moment, call in (("planning", "1"), ("surgery", "0"), ("saving", "0")):  # epoch 2, its repetition, and its end
        assert started(script, str(tmp_path / "killed"), moment, call).returncode == -signal.SIGKILL
    for name in ("killed", "alone"):
        done = started(script, str(tmp_path / name))
        assert done.returncode == 0, done.stderr[-6000:]
    ends = [torch.load(tmp_path / name / "end.pt", weights_only=True) for name in ("killed", "alone")]
    assert ends[0].keys() == ends[1].keys()
    assert all(torch.equal(value, ends[1][name]) for name, value in ends[0].items())
