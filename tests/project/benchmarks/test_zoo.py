"""The zoo of networks: separate rows, runs that continue, and the page."""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from cases.paths import ROOT

from benchmarks.zoo import zoo
from benchmarks.zoo.depth_trial import drawn
from benchmarks.zoo.networks import suites
from benchmarks.zoo.trial import FIXED, REFUSED
from benchmarks.zoo.worker import Lost, Worker
from prunerecover.plan.units import Unit

QUICK = ("gcn", "tcn")
DEEP = "residual-super-resolution"
STEPS = ("pruned", "reloaded", "exported")
Run = Callable[..., dict[str, Any]]


@pytest.mark.slow
def test_an_interrupted_run_goes_on_where_it_was(run: Run, calls: list[tuple[str, str]]) -> None:
    first = run("--suite", "plain", "--only", QUICK[0])
    found = run("--suite", "plain", "--only", *QUICK)
    assert calls == [(step, name) for name in QUICK for step in STEPS]
    assert found["rows"][0] == first["rows"][0]
    assert [row["name"] for row in found["rows"]] == [*QUICK]
    for row in found["rows"]:
        assert (row["suite"], row["kind"]) == ("plain", "width")
        assert row["outcome"] == "ok", row
        assert row["removed"] == pytest.approx(row["asked"], abs=0.02)
        assert row["seconds"] > 0
        assert row["planning_seconds"] > 0
    longest = sorted(found["rows"], key=lambda row: row["planning_seconds"], reverse=True)
    named = ", ".join(f"{row['name']} {row['planning_seconds']:.1f}" for row in longest)
    assert "Planning takes less than 20 s of processor time on 2 of 2 networks" in found["page"]
    assert f"longest on {named}." in found["page"]
    assert "| plain | 2 | 0 | 2 | 2 of 2: 100.0% (34.2 to 100.0) | 0 | 0 |" in found["page"]
    assert f"- plain: {', '.join(QUICK)}" in found["page"]


@pytest.mark.slow
def test_failures_are_measured_again(run: Run, calls: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, timeout: float) -> None:
        raise RuntimeError("No space left")

    with monkeypatch.context() as patch:
        patch.setattr(zoo.Worker, "call", broken)
        page = run("--suite", "plain", "--only", QUICK[0])["page"]
    assert f"- {QUICK[0]} (plain, failed): pruned: No space left" in page
    assert run("--suite", "plain", "--only", QUICK[0])["page"] == page
    assert not calls
    assert "Not ok" not in run("--suite", "plain", "--only", QUICK[0], "--again-failed")["page"]
    assert calls


def test_a_suite_without_its_package_is_named(
    run: Run, calls: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(suites, "SUITES", ("plain", "ultralytics"))
    for name in [name for name in sys.modules if name.startswith("ultralytics.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ultralytics", None)
    monkeypatch.delitem(sys.modules, "benchmarks.zoo.networks.ultralytics", raising=False)
    suites.networks_of.cache_clear()
    found = run("--suite", "ultralytics")
    assert not found["rows"]
    assert "Not measured: ultralytics cannot be imported" in found["page"]
    assert "ultralytics cannot be imported" in capsys.readouterr().out


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
def test_a_network_of_the_zoo_loses_units_of_depth(run: Run, calls: list[tuple[str, str]]) -> None:
    found = run("--suite", "plain", "--only", DEEP, kind="depth")
    assert run("--suite", "plain", "--only", DEEP, kind="depth")["rows"] == found["rows"]
    assert calls == [(step, DEEP) for step in STEPS]
    [row] = found["rows"]
    assert (row["kind"], row["outcome"], row["named"]) == ("depth", "ok", False), row
    assert row["units"]["layer"] >= len(row["removed"]["layer"]) == row["asked"] == 3
    assert all(0 < share < 1 for share in row["saved"])
    assert "| plain | 1 | 0 | 1 | 1 of 1: 100.0% (20.7 to 100.0) | 0 | 0 |" in found["page"]


def test_a_network_without_units_of_depth_is_named_with_the_reason(run: Run, calls: list[tuple[str, str]]) -> None:
    page = run("--suite", "plain", "--only", "patch-discriminator", kind="depth")["page"]
    assert "- patch-discriminator (plain, nothing): Expected Discriminator to have units of kind" in page
    assert calls == [("pruned", "patch-discriminator")]


def test_fewer_units_go_where_no_more_can_go_together(run: Run, calls: list[tuple[str, str]]) -> None:
    page = run("--suite", "transformers", "--only", "Qwen3_5ForCausalLM", "--no-onnx", kind="depth")["page"]
    assert "none of those that are left can go with them: Qwen3_5ForCausalLM (1 of 2)." in page


def test_units_that_are_drawn_are_not_inside_one_another_and_leave_a_block() -> None:
    blocks = [Unit(f"blocks.{n}", "block", (f"blocks.{n}",), 1) for n in range(3)]
    inside = [Unit(f"{block.name}.mlp", "mlp", (f"{block.name}.mlp",), 1, block=block.name) for block in blocks]
    assert drawn(blocks, most_blocks=2) == ["block", "block"]
    assert drawn(blocks + inside, most_blocks=0) == ["mlp"] * 3
    assert len(drawn(blocks + inside, most_blocks=2)) == 3


def test_a_failed_sequence_is_told(run: Run, calls: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: object, timeout: float) -> None:
        raise Lost("took more than 1 s")

    monkeypatch.setattr(zoo.Worker, "call", lost)
    page = run("--sequences", "2", "--only", "shared", kind="depth")["page"]
    assert "0 of 2: 0.0% (0.0 to 65.8) sequences end well" in page
    assert "- shared: seeds 0 to 1: took more than 1 s" in page


def test_sequences_are_of_depth(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        run("--sequences", "2")
    assert "--sequences are of --kind depth" in capsys.readouterr().err


@pytest.mark.parametrize("kind", zoo.DIMENSIONS)
def test_a_page_is_rendered_anew_to_the_same_bytes(kind: str) -> None:
    page = zoo.DIMENSIONS[kind].page
    path = ROOT / "docs" / "results" / f"{page.name}.json"
    assert page.markdown(json.loads(path.read_text())) == path.with_suffix(".md").read_text()


@pytest.mark.parametrize("kind", zoo.DIMENSIONS)
def test_every_refusal_names_its_cause_and_a_way_out(kind: str) -> None:
    rows = json.loads((ROOT / "docs" / "results" / f"{zoo.DIMENSIONS[kind].page.name}.json").read_text())["rows"]
    refused = [row for row in rows if row["outcome"] in ("refused", "nothing")]
    parts = [*refused, *(row[part] for part in ("onnx_parts", "less_parts") for row in rows if part in row)]
    assert parts
    assert all(part["cause"] and part["way_out"] for part in parts)
    assert all("onnx_parts" in row for row in rows if row.get("onnx") in (FIXED, REFUSED))


@pytest.mark.slow
@pytest.mark.parametrize("kind", zoo.DIMENSIONS)
def test_a_network_of_all_suites_is_ok(run: Run, kind: str) -> None:
    rows = json.loads((ROOT / "docs" / "results" / f"{zoo.DIMENSIONS[kind].page.name}.json").read_text())["rows"]
    ok = [row for row in rows if row["outcome"] == "ok" and row["suite"] in suites.available()[0]]
    drawn = random.Random(0).choice(sorted(ok, key=lambda row: row["seconds"])[:40])
    found = run("--suite", drawn["suite"], "--only", drawn["name"], kind=kind)
    (row,) = found["rows"]
    assert row["outcome"] in ("ok", "slow"), found["page"]  # slow: of this machine, not of the network
