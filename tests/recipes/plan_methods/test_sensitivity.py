"""`prunerecover plan --method sensitivity | sites | graph`: their output, its place, and the plans made from it."""

from __future__ import annotations

from pathlib import Path

import pytest
from cases.width.command_line import IMAGE, command, dense, run
from matplotlib.image import imread

from prunerecover import apply_plan, find_sites, find_units


@pytest.mark.slow
def test_scores_make_plans(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert command(tmp_path, "--method=sensitivity", "--method.kinds=[block, channel]", output="all.json") == 0
    assert f"Wrote {tmp_path / 'all.md'}, its picture" in capsys.readouterr().out
    assert {file.name for file in tmp_path.iterdir()} == {"recipe.yaml", "all.md", "all.png", "all.scores.safetensors"}
    page = (tmp_path / "all.md").read_text()
    assert "## Depth" in page
    assert "## Width" in page
    scores = f"--method.scores={tmp_path / 'all.scores.safetensors'}"
    width = run(tmp_path, "--method=per_cost", "--method.macs=0.3")
    depth = run(tmp_path, "--method=depth", "--method.remove={block: 1}")
    monkeypatch.setattr("prunerecover.width.allocator.compute_importances", None)
    assert run(tmp_path, "--method=per_cost", "--method.macs=0.3", scores).edits == width.edits
    assert run(tmp_path, "--method=depth", "--method.remove={block: 1}", scores).edits == depth.edits


@pytest.mark.slow
def test_sites_are_those_of_the_network(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--method=sites", "--method.kinds=[block, channel]", "--method.ignore=['layer3.*']"]
    assert command(tmp_path, *options, output="all.json") == 0
    sites = find_sites(dense().model, IMAGE, ("block", "channel"), "layer3.*")
    printed = capsys.readouterr().out
    assert str(sites) in printed
    assert f"Wrote {tmp_path / 'all.md'}" in printed
    assert {file.name for file in tmp_path.iterdir()} == {"recipe.yaml", "all.md"}
    page = (tmp_path / "all.md").read_text()
    assert page == sites.to_markdown()
    assert all(f"| {site.name} | {site.kind} | {site.size} | {site.params:,} |" in page for site in sites)
    assert all(f"| `{name}` | {reason} |" in page for name, reason in sites.refused.items())


OPTIONS = ("--method=graph", "--method.remove={layer: 3}", "--method.importance=magnitude")


@pytest.mark.slow
def test_plan_applies_and_its_picture_lies_beside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = run(tmp_path, *OPTIONS)
    assert "Wrote" in capsys.readouterr().out
    files = {"recipe.yaml", "plan.json", "plan.safetensors", "plan.network.png"}
    assert {file.name for file in tmp_path.iterdir()} == files
    picture = imread(tmp_path / "plan.network.png")[..., :3]
    assert picture.min() < 0.5
    assert picture.max() == 1
    network = dense().model
    names = {unit.name for unit in find_units(network, IMAGE, "layer")}
    assert len(plan.removed["layer"]) == 3
    assert names.issuperset(plan.removed["layer"])
    apply_plan(network, plan)
    assert network(IMAGE).shape == (1, 10)
    assert plan.result.params == sum(p.numel() for p in network.parameters())
