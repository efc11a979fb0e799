"""The benchmark of long recoveries: the same recovery for all, resumed runs, and a page with paired seeds."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.boundary import long_recovery_training as training
from benchmarks.boundary.long_recovery import BENCHMARK
from benchmarks.runner.rows import Figure, Row
from prunerecover import Plan
from prunerecover.boundary.search import Trial


@pytest.fixture
def few_images(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(24, 3, 32, 32, generator=generator), torch.randint(10, (24,), generator=generator)
    monkeypatch.setattr(training, "_pixels", lambda: images)
    for name, value in {"TRAINED": 16, "HELD_OUT": 8, "BATCH": 8, "EPOCHS": 1, "SHORT": 1}.items():
        monkeypatch.setattr(training, name, value)


def test_the_rate_warms_up_and_ends_near_zero() -> None:
    factor = training.schedule(100)
    assert factor(0) == 0.2
    assert factor(4) == 1.0
    assert math.isclose(factor(99), 0.0, abs_tol=1e-3)


@pytest.mark.usefixtures("few_images")
def test_a_recovery_is_decided_by_its_seed() -> None:
    networks = [training.small_vit() for _ in range(3)]
    curves = [training.train(network, 1, 1e-3, seed) for network, seed in zip(networks, (0, 0, 1), strict=True)]
    first, same, other = (network.head.weight for network in networks)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    assert curves[0] == curves[1]


@pytest.mark.usefixtures("few_images")
def test_a_short_run_is_not_made_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "dense", training.small_vit)
    runs = training.short_runs(1e-3, tmp_path / "trials.jsonl")
    found = runs([Trial(Plan(), 0), Trial(Plan(), 1)])
    monkeypatch.setattr(training, "train", None)
    assert runs([Trial(Plan(), 1), Trial(Plan(), 0)]) == found[::-1]


def row(method: str, seed: int, right: int, stage: str = "whole", budget: float = 0.5) -> Row:
    names = {"method": method, "budget": budget, "stage": stage, "seed": seed, "learns_from": "labels"}
    notes = {"removed": {"attention": ["a"]}, "macs_share": 0.5, "held_out": []}
    return Row.of(names, {"top1": Figure.of(np.arange(100) < right), **notes})


def test_the_page_compares_the_seeds_that_both_have() -> None:
    rows = [row("dense", 0, 90, "untrained", 0.0), row("book", 0, 40), row("default", 0, 60), row("default", 1, 80)]
    (line,) = (line for line in BENCHMARK.markdown(rows, []).splitlines() if "DepthPrune default |" in line)
    assert "| 1, 0, 0, 0 | 0.500 | 0, 1 | 70.00 (" in line
    assert "| +20.0 (" in line
