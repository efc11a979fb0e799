"""transformers' Trainer on two ranks (CPU, gloo, torchrun), and killed in the middle."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from cases.engine import equal
from cases.fits.transformers_fits import fit
from cases.fits.transformers_killed import killed_fit
from cases.fits.transformers_ranks import SETTINGS, callbacks, steady
from cases.paths import ROOT, TESTS

pytestmark = pytest.mark.slow  # starting processes takes longest
SCENARIOS = ("depth", "accumulated", "adapters", "width")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def results(folder: Path) -> Any:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "PL_", "MASTER_", "LOCAL_RANK"))}
    environment |= {"PYTHONPATH": f"{ROOT}{os.pathsep}{TESTS}", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    script, result = TESTS / "cases/fits/transformers_ranks.py", folder / "result.json"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, str(script), str(result), str(folder), *SCENARIOS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)
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
def test_two_ranks_learn_what_one_process_learns(
    results: Any, folder: Path, tmp_path: Path, scenario: str, more: dict[str, Any]
) -> None:
    """From both ranks' samples: twice as many in a batch."""
    more = {"gradient_accumulation_steps": 2, **more} if more else {}
    alone = fit(tmp_path, *callbacks(), model=steady, per_device_train_batch_size=8, **{**SETTINGS, **more})
    found = torch.load(folder / scenario / "whole.pt", weights_only=True)
    assert found.keys() == alone.model.state_dict().keys()
    for name, value in alone.model.state_dict().items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-6)


def test_a_killed_fit_ends_as_one_that_was_left_alone(tmp_path: Path) -> None:
    """Each process is a fork of one that has the libraries."""
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["lightning.pytorch", "peft", "timm", "torch", "transformers"])

    def exit_of(*how: Any) -> int | None:
        process = processes.Process(target=killed_fit, args=how)
        process.start()
        process.join()
        return process.exitcode

    for moment, call in (("planning", 1), ("surgery", 0), ("saving", 0)):  # epoch 2, its repetition, and its end
        assert exit_of(tmp_path / "killed", moment, call) == -signal.SIGKILL
    assert [exit_of(tmp_path / name) for name in ("killed", "alone")] == [0, 0]
    ends = [torch.load(tmp_path / name / "end.pt", weights_only=True) for name in ("killed", "alone")]
    assert equal(*ends)
