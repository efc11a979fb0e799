"""`prunerecover plan --method sensitivity`: what it writes, and that plans take its scores."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from cases.width.command_line import command, run

from prunerecover.importance.saved_scores import SavedScores


@pytest.fixture(autouse=True)
def _no_other_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["prunerecover"])


@pytest.mark.slow
def test_the_scores_serve_plans_in_depth_and_width(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command(tmp_path, "--method=sensitivity", "--method.kinds=[block, channel]", output="all.json") == 0
    assert f"Wrote {tmp_path / 'all.md'}, its picture" in capsys.readouterr().out
    assert {file.name for file in tmp_path.iterdir()} == {"recipe.yaml", "all.md", "all.png", "all.scores.safetensors"}
    page = (tmp_path / "all.md").read_text()
    assert "## Depth" in page
    assert "## Width" in page
    scores = f"--method.scores={tmp_path / 'all.scores.safetensors'}"
    width = run(tmp_path, "--method=per_cost", "--method.macs=0.3")
    depth = run(tmp_path, "--method=depth", "--method.remove={block: 1}")
    monkeypatch.setattr("prunerecover.width.planner.compute_importances", None)
    assert run(tmp_path, "--method=per_cost", "--method.macs=0.3", scores).edits == width.edits
    assert run(tmp_path, "--method=depth", "--method.remove={block: 1}", scores).edits == depth.edits


@pytest.mark.slow
def test_scores_beside_a_plan_serve_another_budget(tmp_path: Path) -> None:
    run(tmp_path, "--method=per_cost", "--method.macs=0.3")
    found = SavedScores.load(tmp_path / "plan.scores.safetensors")
    assert found.scores.keys() == {"gate_taylor"}
    scores = f"--method.scores={tmp_path / 'plan.scores.safetensors'}"
    plan = run(tmp_path, "--method=per_cost", "--method.macs=0.5", scores, output="more.json")
    assert plan.removed
