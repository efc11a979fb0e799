"""The benchmark of distillation: the most telling rows come first, and the page compares on the same samples."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.recovery.distillation import BENCHMARK, DENSE, RATES, TEACHERS, UNTRAINED, USUAL
from benchmarks.recovery.distillation_subjects import BASE, SUBJECTS
from benchmarks.runner.rows import Figure, Row

HITS = {"labels": [1, 1, 0, 0, 0, 0, 0, 0, 0, 0], BASE: [1, 1, 1, 1, 0, 0, 0, 0, 0, 0]}


def row(hits: Any, **names: Any) -> Row:
    return Row.of({"model": "ResNet-56", "epochs": 1, "seed": 0, **names}, {"score": Figure.of(hits)})


def test_the_middle_rate_of_all_networks_comes_first() -> None:
    rows = BENCHMARK.wanted({"method": USUAL})
    first = 2 * len(SUBJECTS)
    assert {names["method"] for names in rows[:first]} == {DENSE, UNTRAINED}
    count = sum(len(USUAL) - (model == "ResNet-56") for model in SUBJECTS)
    assert {names["rate"] for names in rows[first : first + 2 * count]} == {RATES[0]}
    assert [names["epochs"] for names in rows[first : first + 2 * count]] == [1] * count + [5] * count
    assert len(rows) == first + 6 * count
    assert {names["method"] for names in rows[first:]} <= set(TEACHERS)


def test_losses_are_compared_at_the_same_rate_and_epochs() -> None:
    rows = [row(hits, method=method, rate="middle") for method, hits in HITS.items()]
    rows.append(row(np.ones(10), method="labels", rate="highest"))
    rows.append(row(np.ones(10), method=DENSE, rate="", epochs=0))
    lines = BENCHMARK.markdown(rows, []).splitlines()
    assert any(line.endswith("Rates: middle: 0.02; lowest: 0.005; highest: 0.05. Dense 100.0.") for line in lines)
    (labels,) = (line for line in lines if line.startswith("| 1 | labels |"))
    assert labels.startswith("| 1 | labels |  | 20.0; -20.0 (")
    assert labels.endswith(" | 100.0 |")
    assert f"| 1 | {BASE} |  | 40.0 |  |" in lines
