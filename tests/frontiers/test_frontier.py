"""The frontier: points of several budgets as a table, a picture, evidence of a plan and a section of its report."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from cases.support.drawn import explained, is_whole
from torch import nn

from prunerecover.frontiers.frontier import Frontier
from prunerecover.plan.edits import Remove
from prunerecover.plan.evidence import FrontierPoint, joined
from prunerecover.plan.plan import Plan
from prunerecover.report.compare import compare
from prunerecover.report.report import Report

POINTS = tuple(
    FrontierPoint(share, divergence, {"latency": share + 0.01, "macs": 1.5 * share})
    for share, divergence in ((0.1, 0.012), (0.2, 0.118), (0.33, 0.336), (0.5, 0.81))
)
FRONTIER = Frontier(POINTS, cost="latency")
PLAN = Plan(edits=(Remove(unit="blocks.3", kind="block"),), evidence={"samples": 8, **FRONTIER.to_dict()})


def test_a_plan_of_a_share_is_made_by_what_scored_and_a_file_has_no_scores() -> None:
    asked: list[float] = []

    def plan_at(share: float) -> Plan:
        asked.append(share)
        return PLAN

    assert Frontier(POINTS, plan_at).plan(0.3) is PLAN
    assert asked == [0.3]
    with pytest.raises(RuntimeError, match=r"is read from a plan: .*Plan with Budget\(latency=0.3\)"):
        FRONTIER.plan(0.3)


def test_the_table_has_a_row_for_each_share() -> None:
    assert str(FRONTIER).splitlines() == [
        "Frontier over shares of the latency",
        "asked  divergence  MACs   latency",
        "10.0%  0.012       15.0%  11.0%",
        "20.0%  0.118       30.0%  21.0%",
        "33.0%  0.336       49.5%  34.0%",
        "50.0%  0.81        75.0%  51.0%",
    ]


def test_a_plan_file_keeps_the_frontier(tmp_path: Path) -> None:
    PLAN.save(tmp_path / "plan.json")
    again = Frontier.of(Plan.load(tmp_path / "plan.json").evidence)
    assert again == FRONTIER
    assert Frontier.of(json.loads(json.dumps(FRONTIER.to_dict()))) == FRONTIER
    assert Frontier.of({}) is None


@pytest.mark.parametrize(
    "entry",
    [
        "many",
        [{"share": 0.1}],
        [{"share": 1.5, "divergence": 0.1, "costs": {}}],
        [{"share": 0.1, "divergence": "much", "costs": {}}],
        [{"share": 0.1, "divergence": math.nan, "costs": {}}],
        [{"share": 0.1, "divergence": 0.1, "costs": {"macs": math.inf}}],
    ],
)
def test_a_frontier_of_another_form_counts_as_not_there(entry: Any) -> None:
    assert Frontier.of({"frontier": entry, "samples": 8}) is None


@pytest.mark.parametrize(
    ("share", "divergence", "costs"),
    [(1.0, 0.1, {}), (-0.1, 0.1, {}), (0.1, math.inf, {}), (0.1, 0.1, {"macs": math.nan})],
)
def test_points_are_checked(share: float, divergence: float, costs: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"Expected a share from 0 to 1 \(exclusive\) with finite numbers, but got"):
        FrontierPoint(share, divergence, costs)


def test_shares_rise_and_costs_are_known() -> None:
    for points in ((), POINTS[::-1], (POINTS[0], POINTS[0])):
        with pytest.raises(ValueError, match="Expected points of a frontier in rising order of their shares"):
            Frontier(points)
    with pytest.raises(ValueError, match="one of macs, params, .*, active_params, but got 'energy'"):
        Frontier(POINTS, cost="energy")


def test_the_picture_draws_what_is_known(tmp_path: Path) -> None:
    figure = FRONTIER.plot(tmp_path / "frontier.png")
    left, right = figure.axes
    assert left.lines[0].get_xydata().tolist() == [[point.share, point.divergence] for point in POINTS]
    assert left.get_yscale() == "log"  # 0.012 to 0.81
    drawn = {line.get_label(): line.get_xydata().tolist() for line in right.lines}
    assert drawn["latency"] == [[point.share, point.costs["latency"]] for point in POINTS]
    assert explained(figure) == ["asked", "MACs", "latency"]
    assert left.get_xlabel() == "Share of the latency that is asked for"
    assert is_whole(figure)
    assert (tmp_path / "frontier.png").is_file()


def test_few_points_and_no_divergence_are_drawn() -> None:
    for points in (POINTS[:1], (FrontierPoint(0.1, 0.0, {}), FrontierPoint(0.2, 1.0, {}))):
        figure = Frontier(points).plot()
        assert figure.axes[0].get_yscale() == "linear"
        assert is_whole(figure)


def test_a_plan_says_what_other_shares_cost() -> None:
    last = str(PLAN).splitlines()[-1].split()
    assert " ".join(last) == "frontier 0.012 at 10%, 0.12 at 20%, 0.34 at 33%, 0.81 at 50%"
    assert len(str(PLAN).splitlines()) <= 12


def test_a_report_tells_what_other_budgets_would_cost(tmp_path: Path) -> None:
    net = nn.Linear(4, 2)
    report = compare(net, net, torch.zeros(2, 4), plan=PLAN, pairs=0)
    assert "## What other budgets would cost\n\n| asked | divergence | MACs | latency |" in report.to_markdown()
    assert "Asked of the latency; divergence of the output is predicted." in report.to_markdown()
    report.save(tmp_path)
    assert Report.load(tmp_path).plan == report.plan
    bare = compare(net, net, torch.zeros(2, 4), plan=PLAN.model_copy(update={"evidence": {}}), pairs=0)
    assert "other budgets" not in bare.to_markdown()


def test_two_plans_in_turn_have_no_frontier() -> None:
    assert Frontier.of(joined(PLAN.evidence, {}, str)) is None
    assert Frontier.of(joined({}, PLAN.evidence, str)) is None
