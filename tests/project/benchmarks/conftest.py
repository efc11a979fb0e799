"""The zoo in the test's process, with results in a temporary folder and replaced workers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cases.paths import ROOT

from benchmarks.zoo import zoo

Run = Callable[..., dict[str, Any]]


class InThisProcess:
    """Replaces a worker, with calls in this process."""

    calls: list[tuple[str, str]] = []

    def __init__(self, prepare: object) -> None:
        pass

    def start(self) -> None:
        pass

    stop = start

    def call(self, function: Callable[..., Any], *args: Any, timeout: float) -> Any:
        self.calls.append((function.__name__, args[1]))
        return function(*args)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs the benchmark with options and returns its results."""
    monkeypatch.setattr(zoo, "RESULTS", tmp_path)

    def call(*options: str, kind: str = "width") -> dict[str, Any]:
        program = str(ROOT / "benchmarks" / "zoo" / "zoo.py")
        monkeypatch.setattr("sys.argv", [program, "--kind", kind, *options])
        zoo.main()
        path = tmp_path / f"{zoo.DIMENSIONS[kind].page.name}.md"
        return {**json.loads(path.with_suffix(".json").read_text()), "page": path.read_text()}

    return call


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Return the record of calls, made here instead of in other processes."""
    monkeypatch.setattr(zoo, "Worker", InThisProcess)
    monkeypatch.setattr(InThisProcess, "calls", [])
    return InThisProcess.calls
