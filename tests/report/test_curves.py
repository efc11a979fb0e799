"""Figures show the data they were given, and change nothing outside themselves."""

from __future__ import annotations

import io

import numpy as np
import pytest
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.image import imread

from prunerecover.report.curves import TradeoffPoint, plot_history, plot_tradeoff

LONG = "val_multiclass_accuracy_of_facebook_deit_tiny_distilled_patch16_224_in1k"


def rendered(figure: Figure) -> np.ndarray:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=60)
    buffer.seek(0)
    return imread(buffer)


def explained(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_history_holds_the_points_the_surgery_and_the_dense_model() -> None:
    points = [(0.0, 0.5), (1.0, 0.25), (2.0, 0.75)]
    figure = plot_history({"pruned": points}, surgeries=[(1, "2 attention"), (2, "1 mlp")], dense=0.8)
    lines = figure.axes[0].lines
    series = next(line for line in lines if line.get_label() == "pruned")
    assert np.asarray(series.get_xydata()).tolist() == [list(point) for point in points]
    assert [line.get_xdata()[0] for line in lines if line.get_linestyle() == ":"] == [1, 2]
    assert next(line for line in lines if line.get_label() == "dense").get_ydata()[0] == 0.8
    assert [text.get_text().replace("\u00a0", " ") for text in figure.axes[0].texts] == ["2 attention", "1 mlp"]
    assert explained(figure) == ["surgery", "dense", "pruned"]


def test_history_of_a_loss_is_not_in_percent() -> None:
    figure = plot_history({"validation": [(0, 2.0), (1, 1.0)]}, metric="Loss", percent=False)
    rendered(figure)
    assert not any("%" in label.get_text() for label in figure.axes[0].get_yticklabels())


def test_tradeoff_sorts_by_cost_and_draws_intervals() -> None:
    points = [TradeoffPoint("ours", 0.9, 0.78, 0.75, 0.80), TradeoffPoint("ours", 0.7, 0.70, 0.66, 0.75)]
    figure = plot_tradeoff([*points, TradeoffPoint("random", 0.8, 0.5, 0.45, 0.55)], dense=0.8)
    bars = [c for c in figure.axes[0].containers if isinstance(c, ErrorbarContainer)]
    assert [bar.get_label() for bar in bars] == ["ours", "random"]
    data, _, (whiskers,) = bars[0].lines
    assert np.asarray(data.get_xydata()).tolist() == [[0.7, 0.70], [0.9, 0.78]]
    ends = [segment[:, 1].tolist() for segment in whiskers.get_segments()]
    np.testing.assert_allclose(ends, [[0.66, 0.75], [0.75, 0.80]])
    assert explained(figure) == ["dense", "ours", "random"]


@pytest.mark.parametrize(
    "figure",
    [
        plot_history({"a": [(0, 0.1), (1, 0.9)]}, [(1, "1 mlp")]),
        plot_history(
            {LONG: [(0, 0.1), (1, 0.9)]},
            [(1, "depth: 2 activations, 1 attention, 12 blocks removed " * 2)],
            metric=LONG,
        ),
        plot_tradeoff([TradeoffPoint("a", 0.5, 0.5, 0.4, 0.6)]),
    ],
    ids=["history", "long history", "tradeoff"],
)
def test_nothing_is_cut_off_at_the_edges(figure: Figure) -> None:
    image = rendered(figure)[..., :3]
    assert image.min() < 0.5
    edges = np.concatenate([image[0], image[-1], image[:, 0], image[:, -1]])
    assert (edges == 1).all()
