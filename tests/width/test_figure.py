"""Figures of plans in width show the plans' edits; groups are counted under the dense model's names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from cases.models.tiny import plain_vit
from cases.support.drawn import bars, is_whole
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex
from matplotlib.patches import FancyBboxPatch
from torch import Tensor, nn

from prunerecover import Budget, Plan, apply_plan, plan_depth, plan_width
from prunerecover.display.style import BLUE, VERMILION
from prunerecover.model.paths import get_module
from prunerecover.plan.edits import Narrow, Remove
from prunerecover.plan.figure import WidthPanel, draw_panels
from prunerecover.plan.kept_groups import KeptGroup
from prunerecover.plan.kinds import TRAITS
from prunerecover.report.data import PlanSummary
from prunerecover.report.render import _what_was_removed
from prunerecover.width.figure import plot_rankings

GROUPS = (
    KeptGroup("stem", "channel", 8, 8),
    KeptGroup("blocks.0.attn", "head", 1, 4),
    KeptGroup("blocks.0.mlp", "neuron", 6, 8),
    KeptGroup("blocks.1.mlp", "expert", 2, 16),
)


def narrow(unit: str, of: int, keep: int, kind: Any = "channel") -> Narrow:
    return Narrow(unit=unit, kind=kind, of=of, keep=tuple(range(keep)), group=())


def texts(labels: Any) -> list[str]:
    return [label.get_text() for label in labels]


# Kept groups.


def vit() -> nn.Module:
    torch.manual_seed(0)
    return plain_vit(patch_size=8, depth=4).eval()


def batches() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn(16, 3, 16, 16, generator=generator), torch.arange(16) % 4)]


@pytest.mark.slow
def test_kept_groups_are_those_of_the_narrowed_model() -> None:
    """Through two rounds of width with a block taken out in between."""
    network, plan = vit(), Plan()
    for step in ("width", "block", "width"):
        if step == "width":
            part = plan_width(network, Budget(params=0.2), batches=batches())
        else:
            part = plan_depth(network, remove={"block": 1}, batches=batches())
            (gone,) = part.removed["block"]
        apply_plan(network, part)
        plan = plan + part
    left = [f"blocks.{i}" for i in range(4) if f"blocks.{i}" != gone]
    expected = {}
    for number, block in enumerate(left):
        narrowed = get_module(network, f"blocks.{number}")
        expected[f"{block}.attn.qkv"] = (narrowed.attn.num_heads, 4)
        expected[f"{block}.mlp.fc1"] = (narrowed.mlp.fc1.out_features, 128)
    assert {group.name: (group.kept, group.size) for group in plan.kept_groups} == expected
    assert [group.name for group in plan.kept_groups] == list(expected)


def test_kept_groups_are_of_the_evidence_and_the_edits_without_what_has_gone_as_a_whole() -> None:
    evidence = {"kept": {"a": [4, 4], "b": [2, 6]}, "kinds": {"a": "head", "b": "channel"}}
    plan = Plan(edits=(narrow("b", 6, 2),), evidence=evidence)
    assert plan.kept_groups == (KeptGroup("a", "head", 4, 4), KeptGroup("b", "channel", 2, 6))
    assert Plan(edits=plan.edits).kept_groups == (KeptGroup("b", "channel", 2, 6),)
    assert Plan(evidence=evidence).kept_groups == ()
    gone = Plan(edits=(narrow("attn.qkv", 4, 2, "head"), Remove(unit="attn", kind="attention")))
    assert gone.kept_groups == ()
    assert "head" not in _what_was_removed(PlanSummary.of(gone))


def test_reports_count_units_per_group() -> None:
    plan = Plan(edits=(narrow("fc1", 40, 30, "neuron"), narrow("fc1", 30, 20, "neuron"), narrow("fc2", 1960, 960)))
    summary = PlanSummary.of(plan)
    text = _what_was_removed(summary)
    assert "- neuron: 20 of 40 (50%): `fc1` 20 of 40\n- channel: 1,000 of 1,960 (51%): `fc2` 1000 of 1960\n" in text
    assert not summary.leaves
    assert PlanSummary.model_validate_json(summary.model_dump_json()) == summary


# Bars.


def test_bars_are_the_kept_shares_in_order() -> None:
    figure = draw_panels([WidthPanel(GROUPS)])
    (axes,) = figure.axes
    expected = [(1.0, "channel"), (0.25, "head"), (0.75, "neuron"), (0.125, "expert")]
    assert list(bars(axes).values()) == [(share, TRAITS[kind].color) for share, kind in expected]
    assert texts(axes.get_xticklabels()) == ["stem", "blocks.0.attn", "blocks.0.mlp", "blocks.1.mlp"]
    assert texts(axes.texts) == ["8 of 8", "1 of 4", "6 of 8", "2 of 16"]
    heading = "Removed: channel 0 of 8, head 3 of 4, neuron 2 of 8, expert 14 of 16"
    assert figure.get_suptitle().replace("\n", " ") == heading
    legend = texts(figure.legends[0].get_texts())
    assert legend == ["channels kept", "heads kept", "neurons kept", "experts kept", "gone"]
    assert is_whole(figure)


def test_what_names_share_is_said_once() -> None:
    (axes,) = draw_panels([WidthPanel(GROUPS[1:])]).axes
    assert texts(axes.get_xticklabels()) == ["0.attn", "0.mlp", "1.mlp"]
    assert axes.get_xlabel() == "blocks"


# Plans.


@pytest.mark.slow
def test_a_plan_in_depth_and_width_has_both_panels() -> None:
    network = vit()
    depth = plan_depth(network, remove={"activation": 1, "attention": 1}, batches=batches())
    apply_plan(network, depth)
    width = plan_width(network, Budget(macs=0.2), batches=batches())
    figure = (depth + width).plot()
    above, below = figure.axes
    (alone,) = depth.plot().axes
    cells = [[p.get_facecolor() for p in axes.patches if isinstance(p, FancyBboxPatch)] for axes in (above, alone)]
    assert cells[0] == cells[1]
    assert [share for share, _ in bars(below).values()] == [group.share for group in (depth + width).kept_groups]
    headings = [part.get_suptitle() for part in figure.subfigs]
    assert headings[0] == depth.plot().get_suptitle()
    assert headings[1].startswith("Removed: head ")
    assert is_whole(figure)


# The two rankings.


def scores(size: int, seed: int) -> Tensor:
    return torch.rand(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_removal(name: str, size: int, depth: int, low: Tensor) -> Narrow:
    keep = low.argsort()[depth:].sort().values.tolist()
    return Narrow(unit=name, kind="channel", of=size, keep=tuple(keep), group=())


def points(axes: Axes, color: str) -> set[tuple[float, float]]:
    dots = [c for c in axes.collections if isinstance(c, PathCollection)]
    found = [tuple(at) for c in dots if to_hex(c.get_facecolor()[0]) == color for at in np.asarray(c.get_offsets())]
    return set(found)


def test_rankings_show_every_unit_and_what_goes() -> None:
    low, high = {"a": scores(20, 0), "b": scores(12, 1)}, {"a": scores(20, 2), "b": scores(12, 3)}
    plan = Plan(edits=(by_removal("a", 20, 8, low["a"]), by_removal("b", 12, 5, low["b"])))
    figure = plot_rankings(plan, low, high, names=("U", "R"))
    for axes, name, depth in zip(figure.axes, "ab", (8, 5), strict=True):
        order, protected = low[name].argsort().tolist(), high[name].argsort(descending=True).tolist()
        everywhere = {unit: (order.index(unit), protected.index(unit)) for unit in order}
        assert points(axes, VERMILION) == {everywhere[unit] for unit in order[:depth]}
        assert points(axes, BLUE) == {everywhere[unit] for unit in order[depth:]}
        overlap = len(set(order[:depth]) & set(protected[:depth]))
        assert axes.get_title(loc="left") == f"{name}\n{depth} of {len(order)} go, ToD {overlap / depth:.2f}"
        (corner,) = axes.patches
        inside = [p for p in points(axes, VERMILION) if p[1] < corner.get_y() + corner.get_height()]
        assert len(inside) == overlap
    assert figure.get_supxlabel() == "Rank by U: lowest first"
    assert figure.get_supylabel() == "Rank by R: highest on top"
    assert is_whole(figure)


def test_rankings_of_no_group_are_refused() -> None:
    with pytest.raises(ValueError, match="Expected groups that the plan narrows and that are scored, but got no group"):
        plot_rankings(Plan(), {}, {})
