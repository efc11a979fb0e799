"""Benchmarks that have minutes: they end in time, go on where they were, and rehearse on a processor."""

from __future__ import annotations

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

from benchmarks.gpu.images import Images, views
from benchmarks.recovery.best_rates import best_of_rates
from benchmarks.runner.benchmark import Axis, Benchmark
from benchmarks.runner.rows import Results, Row
from benchmarks.runner.time_box import OutOfTime, TimeBox


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


def made(folder: Path, measure: Any, *arguments: str, longest: float = 1.0) -> list[Row]:
    """Run a benchmark of two rows with options, and return its rows."""
    axes = {"method": Axis(("a", "b"))}
    benchmark = Benchmark("some", "", "Some", "", measure, axes, complete=False, minutes=1, longest=longest)
    benchmark.run(benchmark.command_line().parse_args(["--out", str(folder), *arguments]))
    return Results.read("some", folder).rows


def test_rows_without_time_are_left_and_made_by_the_next_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = made(tmp_path, lambda method: {"value": 1} if method == "a" else endless(), "--minutes", "0.005")
    assert [row.method for row in rows] == ["a"]
    assert "1 rows are left: b." in capsys.readouterr().out
    rows = made(tmp_path, lambda method: pytest.fail("made twice") if method == "a" else {"value": 2})
    assert [(row.method, row["value"]) for row in rows] == [("a", 1), ("b", 2)]


def broken() -> Any:
    raise ValueError("Expected something else.")


def test_a_row_that_fails_is_left_and_the_next_is_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert [row.method for row in made(tmp_path, lambda method: broken() if method == "a" else {})] == ["b"]
    said = capsys.readouterr()
    assert "1 rows are left: a (failed)." in said.out
    assert "ValueError: Expected something else." in said.err


def test_a_row_that_takes_too_long_says_so_and_the_next_is_made(tmp_path: Path) -> None:
    rows = made(tmp_path, lambda method: endless() if method == "a" else {}, longest=0.05 / 60)
    assert [(row.method, row.get("over")) for row in rows] == [("a", pytest.approx(0.05)), ("b", None)]


def test_rows_of_a_machine_that_was_lent_are_read_beside_the_committed_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed, lent = tmp_path / "results", tmp_path / "lent"
    monkeypatch.setattr("benchmarks.runner.rows.RESULTS", committed)
    made(committed, lambda method: {"value": 1}, "--methods", "a")
    rows = made(lent, lambda method: {"value": 2})
    assert [(row.method, row["value"]) for row in rows] == [("b", 2)]


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


def rehearsed(name: str, out: Path) -> tuple[list[Row], str]:
    """Rehearse a benchmark in a process of its own, and return its rows and page."""
    arguments = [sys.executable, "-m", f"benchmarks.gpu.{name}", "--rehearse", "--minutes", "20", "--out", str(out)]
    arguments += ["--budgets", "0.5"] if name == "long_recovery" else []
    done = subprocess.run(
        arguments, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    return Results.read(f"{name}_gpu", out).rows, (out / f"{name}_gpu.md").read_text()


@pytest.mark.slow
def test_planning_is_rehearsed(tmp_path: Path) -> None:
    rows, page = rehearsed("planning", tmp_path)
    assert len(rows) == 4 * 8 - 2
    assert [row for row in rows if row.get("failed") or row.get("over")] == []
    assert page.count("| `plan_") == 5


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.usefixtures("data_root")
def test_long_recovery_is_rehearsed_and_not_made_twice(tmp_path: Path) -> None:
    rows, page = rehearsed("long_recovery", tmp_path)
    assert len({row.method for row in rows}) == len(rows) == 8
    assert all(row.figures["top1"].n == 50 and row["latency_share"] > 0 for row in rows)
    assert "| Prune |" in page
    assert "Not measured, 6 of 14" in page
    assert rehearsed("long_recovery", tmp_path)[0] == rows
