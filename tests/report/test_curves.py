"""Figures show the data they were given, and change nothing outside themselves."""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.patches import FancyBboxPatch, Rectangle

from prunerecover.display.style import LIGHT
from prunerecover.plan.depth_panel import GONE, LOOKS
from prunerecover.plan.edits import Remove, Replace
from prunerecover.plan.kept_groups import KeptGroup
from prunerecover.plan.plan import Plan
from prunerecover.plan.width_panel import plot_kept
from prunerecover.report.curves import TradeoffPoint, plot_history, plot_tradeoff


@dataclass(frozen=True)
class FakeUnit:
    name: str
    kind: str


PARTS = {"attention": ".attn", "activation": ".mlp.act", "mlp": ".mlp", "block": ""}
PLAN = Plan(
    edits=(
        Remove(unit="blocks.1.attn", kind="attention"),
        Replace(unit="blocks.2.mlp.act", kind="activation", leaves="slope_bias"),
    ),
    evidence={"importance": {"blocks.0.attn": 4.0, "blocks.1.attn": 1.0, "blocks.3.attn": 2.0}},
)
LONG = "val_multiclass_accuracy_of_facebook_deit_tiny_distilled_patch16_224_in1k"


def all_units(blocks: int, *kinds: str) -> list[FakeUnit]:
    return [FakeUnit(f"blocks.{i}{PARTS[kind]}", kind) for i in range(blocks) for kind in kinds]


def cells(figure: Figure) -> dict[tuple[int, int], str]:
    """Colour by (block, row); "none" for outlines."""
    found = {}
    for patch in figure.axes[0].patches:
        if isinstance(patch, FancyBboxPatch):
            at = (round(patch.get_x() + 0.43), round(patch.get_y() + 0.43))
            found[at] = "none" if patch.get_facecolor()[3] == 0 else to_hex(patch.get_facecolor())
    return found


def rendered(figure: Figure) -> np.ndarray:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=60)
    buffer.seek(0)
    return imread(buffer)


def rows(figure: Figure) -> list[str]:
    return [label.get_text() for label in figure.axes[0].get_yticklabels()]


def explained(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_plan_colours_exactly_what_was_removed() -> None:
    figure = PLAN.plot(units=all_units(4, "activation", "attention"), importance={})
    assert rows(figure) == ["attention", "activation"]
    expected = {(block, row): LIGHT for block in range(4) for row in range(2)}
    expected |= {(1, 0): LOOKS["zero"].color, (2, 1): LOOKS["slope_bias"].color}
    assert cells(figure) == expected
    assert figure.get_suptitle() == "Removed: attention 1 of 4, activation 1 of 4"
    assert [text.get_text() for text in figure.axes[0].texts] == ["0", "ax+b"]
    assert explained(figure) == ["kept", "removed, leaves zero", "removed, leaves slope and bias"]


def test_units_are_inferred_from_the_plan_alone() -> None:
    inferred, given = PLAN.plot(), PLAN.plot(units=all_units(4, "attention", "activation"))
    assert cells(inferred) == cells(given)


def test_bars_are_relative_to_the_largest_of_the_row() -> None:
    figure = PLAN.plot(units=all_units(4, "attention", "activation"))
    widths = sorted(patch.get_width() for patch in figure.axes[0].patches if isinstance(patch, Rectangle))
    assert widths == pytest.approx([0.66 / 4, 0.66 / 2, 0.66])
    assert "bar: importance in its row" in explained(figure)


def test_what_went_with_its_block_is_an_outline_under_the_dense_models_number() -> None:
    plan = Plan(edits=(Remove(unit="blocks.1", kind="block"), Remove(unit="blocks.1", kind="block")))
    figure = plan.plot(units=all_units(4, "attention", "mlp", "block"))
    found = cells(figure)
    assert [found[block, 2] for block in range(4)] == [LIGHT, LOOKS["nothing"].color, LOOKS["nothing"].color, LIGHT]
    assert [found[block, 0] for block in range(4)] == [LIGHT, "none", "none", LIGHT]
    assert GONE in explained(figure)


def test_deep_models_have_no_signs_and_fewer_numbers() -> None:
    plan = Plan(edits=(Remove(unit="blocks.70", kind="block"),))
    figure = plan.plot(units=all_units(80, "block"))
    assert not figure.axes[0].texts
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()][:3] == ["0", "5", "10"]
    assert figure.get_figwidth() < 18


def test_unknown_units_are_refused() -> None:
    with pytest.raises(ValueError, match=r"among the 1 units of the dense model, but got \['blocks.1.attn'\]"):
        PLAN.plot(units=all_units(1, "attention"))
    with pytest.raises(ValueError, match="but got no unit at all"):
        Plan().plot()


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
        PLAN.plot(),
        plot_history({"a": [(0, 0.1), (1, 0.9)]}, [(1, "1 mlp")]),
        plot_history(
            {LONG: [(0, 0.1), (1, 0.9)]},
            [(1, "depth: 2 activations, 1 attention, 12 blocks removed " * 2)],
            metric=LONG,
        ),
        plot_tradeoff([TradeoffPoint("a", 0.5, 0.5, 0.4, 0.6)]),
        PLAN.plot(title=f"{LONG} of {LONG}"),
        PLAN.plot(units=all_units(6, "attention", "mlp", "activation", "block")),
        plot_kept([KeptGroup("fc", "neuron", 1, 2)], title=f"{LONG} of {LONG}"),
    ],
    ids=["plan", "history", "long history", "tradeoff", "long title", "many kinds", "long title in width"],
)
def test_nothing_is_cut_off_at_the_edges(figure: Figure) -> None:
    image = rendered(figure)[..., :3]
    assert image.min() < 0.5
    edges = np.concatenate([image[0], image[-1], image[:, 0], image[:, -1]])
    assert (edges == 1).all()
