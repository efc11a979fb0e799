"""The benchmark of distillation: the most telling rows come first, and the page compares on the same samples."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.depth.graph_depth_rows import measured
from benchmarks.recovery.distillation import DENSE, TEACHERS, UNTRAINED, markdown, wanted
from benchmarks.recovery.distillation_subjects import BASE, SUBJECTS

HITS = {"labels": [1, 1, 0, 0, 0, 0, 0, 0, 0, 0], BASE: [1, 1, 1, 1, 0, 0, 0, 0, 0, 0]}


def row(**about: Any) -> dict[str, Any]:
    return {**measured(about.pop("hits"), 0, **about), "command": "python -m benchmarks.recovery.distillation"}


def test_the_middle_rate_of_all_networks_comes_first() -> None:
    rows = wanted(list(SUBJECTS), (1, 5), ())
    first = 2 * len(SUBJECTS)
    assert {about["loss"] for about in rows[:first]} == {DENSE, UNTRAINED}
    count = sum(len(subject.losses) for subject in SUBJECTS.values())
    assert all(about["rate"] == SUBJECTS[about["model"]].rates[0] for about in rows[first : first + 2 * count])
    assert [about["epochs"] for about in rows[first : first + 2 * count]] == [1] * count + [5] * count
    assert len(rows) == first + 6 * count
    assert {about["loss"] for about in rows[first:]} <= set(TEACHERS)


def test_losses_are_compared_at_the_same_rate_and_epochs() -> None:
    about = {"model": "ResNet-56", "epochs": 1}
    rows = [row(**about, loss=loss, rate=0.02, hits=np.array(hits)) for loss, hits in HITS.items()]
    rows.append(row(**about, loss="labels", rate=0.05, hits=np.ones(10)))
    rows.append(row(model="ResNet-56", loss=DENSE, rate=0.0, epochs=0, hits=np.ones(10)))
    lines = markdown(rows).splitlines()
    assert "dense: 100.0." in lines
    assert "1 epoch:" in lines
    assert "| learns from | 0.02 | 0.05 |" in lines
    (labels,) = (line for line in lines if line.startswith("| labels |"))
    assert labels.startswith("| labels | 20.0 (-20.0, ")
    assert labels.endswith(" | 100.0 |")
    assert f"| {BASE} | 40.0 |  |" in lines
