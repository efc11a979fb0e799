"""Times of plans for MACs at the divergence of a plan for a runtime."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.runner.at_equal import interpolated, time_ratio
from benchmarks.runner.rows import Figure, Row


def row(method: str, divergence: float, time: float) -> Row:
    scores = divergence * np.linspace(0.5, 1.5, 51)
    time_figure = Figure(time, time * 0.99, time * 1.01, 60)
    figures = {"divergence": Figure.of(scores), "onnxruntime": time_figure}
    return Row(method, 0.2, {"network": "ResNet-56"}, figures)


@pytest.mark.parametrize(
    ("divergence", "time"),
    [
        (0.001, 0.8),
        (0.01, 0.7),  # half of the way from 0.001 to 0.1 in logarithms
        (0.1, 0.6),
        (1.0, 0.6),  # a plan of less divergence takes no more
        (3.0, 0.55),
        (9.0, 0.5),
    ],
)
def test_time_is_linear_in_the_logarithm_of_the_divergence(divergence: float, time: float) -> None:
    plans = [(9.0, 0.5), (0.1, 0.6), (1.0, 0.65), (0.001, 0.8)]
    assert interpolated(divergence, plans) == pytest.approx(time)


@pytest.mark.parametrize("divergence", [0.0009, 9.1])
def test_no_time_is_made_up_outside_of_the_plans(divergence: float) -> None:
    assert interpolated(divergence, [(0.001, 0.8), (9.0, 0.5)]) is None


def test_a_ratio_is_the_geometric_mean_over_plans_within_the_interval_of_images_and_times() -> None:
    macs = [row("MACs", 0.001, 0.8), row("MACs", 0.1, 0.6)]
    ours = [row("onnxruntime", 0.01, 0.63), row("onnxruntime", 0.1, 0.57), row("onnxruntime", 5.0, 0.1)]
    found = time_ratio(ours, macs, "onnxruntime")
    assert found is not None
    assert found.value == pytest.approx(math.sqrt(0.9 * 0.95), rel=1e-4)
    # standard errors of the logarithms of times: of our two plans, and of theirs at both divergences
    error = math.log(1.01 / 0.99) / 3.92
    wide = error * math.sqrt(2 + 0.5**2 + 1.5**2) / 2
    assert math.log(found.high / found.low) / 3.92 == pytest.approx(wide, rel=0.1)


def test_a_ratio_needs_plans_for_macs_on_both_sides() -> None:
    ours, macs = [row("onnxruntime", 0.01, 0.6)], [row("MACs", 0.02, 0.6), row("MACs", 0.1, 0.5)]
    assert time_ratio(ours, macs, "onnxruntime") is None
    assert time_ratio(ours, [], "onnxruntime") is None
