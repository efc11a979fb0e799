"""Runs of a benchmark: existing rows, also from another folder, fits, and the best of three rates."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from benchmarks.recovery.best_rates import best_of_rates
from benchmarks.runner.benchmark import Axis, Benchmark
from benchmarks.runner.fits import Learner, fit
from benchmarks.runner.rows import Results, Row


def made(folder: Path, measure: Any, *arguments: str) -> list[Row]:
    """Run a benchmark of two rows with options, and return its rows."""
    axes = {"method": Axis(("a", "b"))}
    benchmark = Benchmark("Some", "", measure, "some", axes, complete=False)
    benchmark.run(benchmark.command_line().parse_args(["--out", str(folder), *arguments]))
    return Results.read("some", folder).rows


def test_rows_before_an_error_are_kept_and_not_made_again(tmp_path: Path) -> None:
    def broken(method: str) -> dict[str, Any]:
        return {"value": 1} if method == "a" else {"value": 1 / 0}

    with pytest.raises(ZeroDivisionError):
        made(tmp_path, broken)
    rows = made(tmp_path, lambda method: pytest.fail("made twice") if method == "a" else {"value": 2})
    assert [(row.method, row["value"]) for row in rows] == [("a", 1), ("b", 2)]


def test_rows_of_another_folder_are_read_beside_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    committed, lent = tmp_path / "results", tmp_path / "lent"
    monkeypatch.setattr("benchmarks.runner.rows.RESULTS", committed)
    made(committed, lambda method: {"value": 1}, "--methods", "a")
    rows = made(lent, lambda method: {"value": 2})
    assert [(row.method, row["value"]) for row in rows] == [("b", 2)]


def test_a_fit_of_other_steps_than_asked_for_is_told() -> None:
    module = Learner(nn.Linear(1, 1), lambda network, batch: network(batch).sum(), partial(torch.optim.SGD, lr=0.1))
    batches = DataLoader(torch.ones(2, 1))  # type: ignore[arg-type]
    assert fit(module, batches, max_epochs=1).global_step == 2
    with pytest.raises(RuntimeError, match="Expected 3 steps, but the fit made 2"):
        fit(module, batches, max_epochs=1, max_steps=3)


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
