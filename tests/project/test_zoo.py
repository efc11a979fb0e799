"""The zoo of networks: rows one by one, runs that go on where they were, and the page."""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cases.paths import ROOT

from benchmarks.data import real
from benchmarks.width import zoo
from benchmarks.width.zoo_networks import suites
from benchmarks.width.zoo_trial import judged
from benchmarks.width.zoo_worker import Lost, Worker

QUICK = ("swiglu", "flattened-positions")
Run = Callable[..., dict[str, Any]]


class InThisProcess:
    """Stands for a worker: what it calls is called here."""

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
    """Run the benchmark with options, and return what it leaves."""
    monkeypatch.setattr(real, "RESULTS", tmp_path)

    def call(*options: str) -> dict[str, Any]:
        monkeypatch.setattr("sys.argv", [str(ROOT / "benchmarks" / "width" / "zoo.py"), *options])
        zoo.main()
        return {**json.loads((tmp_path / "zoo.json").read_text()), "page": (tmp_path / "zoo.md").read_text()}

    return call


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What is called, here instead of in other processes."""
    monkeypatch.setattr(zoo, "Worker", InThisProcess)
    monkeypatch.setattr(InThisProcess, "calls", [])
    return InThisProcess.calls


def test_an_interrupted_run_goes_on_where_it_was(run: Run, calls: list[tuple[str, str]]) -> None:
    first = run("--suite", "hard", "--only", QUICK[0])
    found = run("--suite", "hard", "--only", *QUICK)
    assert calls == [(step, name) for name in QUICK for step in ("pruned", "reloaded")]
    assert found["rows"][0] == first["rows"][0]
    assert [row["name"] for row in found["rows"]] == [*QUICK]
    for row in found["rows"]:
        assert (row["suite"], row["kind"]) == ("hard", "width")
        assert row["outcome"] == "ok", row
        assert row["removed"] == pytest.approx(row["asked"], abs=0.02)
        assert row["seconds"] > 0
    assert "| hard | 2 | 0 | 2 | 2 of 2: 100.0% (34.2 to 100.0) | 0 | 0 |" in found["page"]
    assert f"- hard: {', '.join(QUICK)}" in found["page"]


def test_what_failed_is_measured_again_if_asked(
    run: Run, calls: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, timeout: float) -> None:
        raise RuntimeError("No space left")

    with monkeypatch.context() as patch:
        patch.setattr(InThisProcess, "call", broken)
        page = run("--suite", "hard", "--only", QUICK[0])["page"]
    assert f"- {QUICK[0]} (hard, failed): pruned: No space left" in page
    assert run("--suite", "hard", "--only", QUICK[0])["page"] == page
    assert not calls
    assert "Not ok" not in run("--suite", "hard", "--only", QUICK[0], "--again-failed")["page"]
    assert calls


def test_a_suite_without_its_package_is_named(
    run: Run, calls: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(suites, "SUITES", ("hard", "ultralytics"))
    for name in [name for name in sys.modules if name.startswith("ultralytics.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ultralytics", None)
    monkeypatch.delitem(sys.modules, "benchmarks.width.zoo_networks.ultralytics", raising=False)
    suites.networks_of.cache_clear()
    found = run("--suite", "ultralytics")
    assert not found["rows"]
    assert "Not measured: ultralytics cannot be imported" in found["page"]
    assert "ultralytics cannot be imported" in capsys.readouterr().out


def test_rows_of_networks_that_the_zoo_no_longer_has_are_dropped(
    run: Run, calls: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run("--suite", "hard", "--only", *QUICK)
    hard = suites.networks_of("hard")
    monkeypatch.delitem(hard, QUICK[0])
    assert [row["name"] for row in run("--suite", "hard", "--only", *QUICK)["rows"]] == [QUICK[1]]


def test_a_share_other_than_the_one_asked_for_needs_a_warning() -> None:
    assert judged(0.319, [])["outcome"] == "ok"
    assert judged(0.35, ["30% were asked for"])["outcome"] == "failed"
    assert judged(0.25, [])["outcome"] == "failed"
    assert judged(0.35, ["30% were asked for, and 35.0% go"])["outcome"] == "ok"


def test_a_process_that_is_lost_is_told_and_replaced() -> None:
    worker = Worker()
    assert worker.call(abs, -3, timeout=60) == 3
    with pytest.raises(Lost, match="the process crashed with exit code 7"):
        worker.call(os._exit, 7, timeout=60)
    with pytest.raises(Lost, match="took more than 0 s"):
        worker.call(time.sleep, 60, timeout=0.1)
    with pytest.raises(RuntimeError, match="ValueError: invalid literal"):
        worker.call(int, "x", timeout=60)
    worker.stop()


@pytest.mark.slow
def test_a_sample_of_all_suites_is_ok(run: Run) -> None:
    rows = json.loads((ROOT / "docs" / "results" / "zoo.json").read_text())["rows"]
    ok = [row for row in rows if row["outcome"] == "ok" and row["suite"] in suites.available()[0]]
    sample = random.Random(0).sample([row for row in ok if row["seconds"] < 10], 10)
    found = run("--suite", *{row["suite"] for row in sample}, "--only", *(row["name"] for row in sample))
    outcomes = {(row["suite"], row["name"]): row["outcome"] for row in found["rows"]}
    assert {(row["suite"], row["name"]) for row in sample} <= {*outcomes}
    assert set(outcomes.values()) == {"ok"}, found["page"]
