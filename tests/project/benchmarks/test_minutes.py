"""Benchmarks that have minutes: they end in time, go on where they were, and rehearse on a processor."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cases.paths import ROOT
from torch import nn

from benchmarks.gpu import rows
from benchmarks.gpu.images import Images, views
from benchmarks.gpu.rows import OutOfTime, TimeBox, make_rows
from benchmarks.recovery.best_rates import best_of_rates


def endless() -> Any:
    while True:
        time.sleep(0.001)


def test_work_ends_with_the_minutes() -> None:
    box, began = TimeBox(minutes=0.001), time.monotonic()
    with pytest.raises(OutOfTime), box.piece():
        endless()
    assert 0.05 < time.monotonic() - began < 1


def test_work_is_not_begun_with_less_time_than_the_longest_took() -> None:
    box = TimeBox(minutes=1, longest=61)
    with pytest.raises(OutOfTime), box.piece():
        pytest.fail("begun")


def options(tmp_path: Path, minutes: float) -> argparse.Namespace:
    return argparse.Namespace(out=tmp_path, minutes=minutes, rehearse=True)


@pytest.fixture
def unsigned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a test are made by no command."""
    monkeypatch.setattr("benchmarks.depth.graph_depth_rows.command", lambda: "a test")


@pytest.mark.usefixtures("unsigned")
def test_rows_without_time_are_left_and_made_by_the_next_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = [({"row": "a"}, lambda: {"value": 1}), ({"row": "b"}, endless)]
    assert [row["row"] for row in make_rows("some", options(tmp_path, 0.001), slow)] == ["a"]
    assert "1 rows are left: b." in capsys.readouterr().out
    again = [({"row": "a"}, lambda: pytest.fail("made twice")), ({"row": "b"}, lambda: {"value": 2})]
    made = make_rows("some", options(tmp_path, 1), again)
    assert [(row["row"], row["value"]) for row in made] == [("a", 1), ("b", 2)]


def broken() -> Any:
    raise ValueError("Expected something else.")


@pytest.mark.usefixtures("unsigned")
def test_a_row_that_fails_is_left_and_the_next_is_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = make_rows("some", options(tmp_path, 1), [({"row": "a"}, broken), ({"row": "b"}, lambda: {})])
    assert [row["row"] for row in made] == ["b"]
    said = capsys.readouterr()
    assert "1 rows are left: a (failed)." in said.out
    assert "ValueError: Expected something else." in said.err


@pytest.mark.usefixtures("unsigned")
def test_a_row_that_takes_too_long_says_so_and_the_next_is_made(tmp_path: Path) -> None:
    made = make_rows("some", options(tmp_path, 1), [({"row": "a"}, endless), ({"row": "b"}, lambda: {})], most=0.05)
    assert [(row["row"], row.get("over")) for row in made] == [("a", 0.05), ("b", None)]


def test_rows_of_a_machine_that_was_lent_are_read_beside_the_committed_ones(tmp_path: Path) -> None:
    given = argparse.Namespace(out=tmp_path, rehearse=False)
    assert rows.folders(given) == (tmp_path, rows.RESULTS)
    assert rows.folders(argparse.Namespace(out=None, rehearse=False)) == (rows.RESULTS,)
    assert rows.RESULTS not in rows.folders(argparse.Namespace(out=None, rehearse=True))


def drawn(n: int, side: int) -> Images:
    pixels = torch.randint(256, (n, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return Images(pixels, torch.zeros(n, dtype=torch.long), side, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))


def test_the_whole_of_an_image_at_its_own_size_is_the_image() -> None:
    images = drawn(2, side=64)
    whole = images.seen(torch.tensor([[1.0, 1.0, 0.0, 0.0]]).expand(2, 4))
    mean, std = (torch.tensor(value).view(3, 1, 1) for value in (images.mean, images.std))
    torch.testing.assert_close(whole, (images.pixels / 255 - mean) / std, atol=1e-4, rtol=1e-4)


def test_a_negative_width_mirrors() -> None:
    images, boxes = drawn(4, side=32), views(4, 1)[0]
    mirror = torch.tensor([-1.0, 1.0, 1.0, 1.0])
    torch.testing.assert_close(images.seen(boxes * mirror), images.seen(boxes).flip(3), atol=1e-4, rtol=1e-4)


def test_views_stay_inside_the_image() -> None:
    boxes = views(500, 3)
    reach = boxes[..., :2].abs() + boxes[..., 2:].abs()
    assert reach.max() <= 1 + 1e-6
    assert 0.4 < (boxes[..., 0] < 0).double().mean() < 0.6
    assert torch.equal(boxes, views(500, 3))


def trained(network: nn.Module, rate: float) -> nn.Module:
    with torch.no_grad():
        next(network.parameters()).fill_(rate)
    return network


@pytest.mark.parametrize(
    ("accuracies", "best"), [({0.1: 0.2, 0.2: 0.9, 0.4: 0.5}, 0.2), ({0.1: 0.2, 0.2: 0.9, 0.4: 0.9}, 0.2)]
)
def test_the_best_of_the_rates_is_that_of_the_held_out_images(accuracies: dict[float, float], best: float) -> None:
    start = nn.Linear(1, 1)
    before = start.weight.clone()

    def held_out(network: nn.Module) -> Any:
        rate = next(name for name in accuracies if abs(name - float(next(network.parameters()).detach())) < 1e-6)
        return np.array([accuracies[rate]])

    found = best_of_rates(start, tuple(accuracies), trained, held_out)
    assert found.rate == best
    assert float(next(found.network.parameters()).detach()) == pytest.approx(best)
    assert found.held_out == {rate: pytest.approx(100 * value) for rate, value in accuracies.items()}
    assert torch.equal(start.weight, before)


def rehearsed(name: str, out: Path) -> tuple[list[dict[str, Any]], str]:
    """Rehearse a benchmark in a process of its own, and return its rows and page."""
    arguments = [sys.executable, "-m", f"benchmarks.gpu.{name}", "--rehearse", "--minutes", "20", "--out", str(out)]
    done = subprocess.run(
        arguments, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    (path,) = out.glob("*_gpu.rows.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()], next(out.glob("*_gpu.md")).read_text()


@pytest.mark.slow
def test_planning_is_rehearsed(tmp_path: Path) -> None:
    made, page = rehearsed("planning", tmp_path)
    assert len(made) == 4 * 8 - 2
    assert [row for row in made if "failed" in row or "over" in row] == []
    assert page.count("| `plan_") == 5


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.usefixtures("data_root")
def test_long_recovery_is_rehearsed_and_not_made_twice(tmp_path: Path) -> None:
    made, page = rehearsed("long_recovery", tmp_path)
    assert len({row["method"] for row in made}) == len(made) == 8
    assert all(row["n"] == 50 and row["latency_share"] > 0 for row in made)
    assert "| Prune |" in page
    assert "Not measured yet: DepthPrune default at 33%" in page
    assert rehearsed("long_recovery", tmp_path)[0] == made
