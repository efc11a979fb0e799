"""Scripts of scenarios on two CPU ranks, in separate processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist
from cases.paths import ROOT, TESTS


def two_ranks(folder: Path, *scenarios: str, script: str = "two_ranks.py") -> Any:
    """Return the results of scenarios in a script of tests/cases, by name; the script starts the second rank."""
    result = folder / "result.json"
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "PL_", "MASTER_", "LOCAL_RANK"))}
    environment |= {"PYTHONPATH": f"{ROOT}{os.pathsep}{TESTS}", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(TESTS / "cases" / script), str(result), str(folder), *scenarios]
    done = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return json.loads(result.read_text())


def run_scenarios(scenarios: Mapping[str, Callable[[Path], Any]]) -> None:
    """Run the command's scenarios on each rank of a script: SCRIPT RESULT.json FOLDER SCENARIO ..."""
    results, where, *names = sys.argv[1:]
    found = {name: scenarios[name](Path(where) / name) for name in names}
    if int(os.environ.get("LOCAL_RANK", 0)) == 0:
        Path(results).write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()  # gloo's threads, left to the end of the process, can abort it
