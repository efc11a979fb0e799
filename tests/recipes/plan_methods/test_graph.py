"""`prunerecover plan --method graph`: what it writes, that it decides as `plan_depth`, and how it says no."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from cases.width.command_line import IMAGE, command, dense, run
from matplotlib.image import imread

from prunerecover import apply_plan, find_units

OPTIONS = ("--method=graph", "--method.remove={layer: 3}", "--method.importance=magnitude")


@pytest.fixture(autouse=True)
def _no_other_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["prunerecover"])


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


@pytest.mark.slow
def test_ignored_layers_stay(tmp_path: Path) -> None:
    plan = run(tmp_path, *OPTIONS, "--method.ignore=['*conv1', 'layer[12].*']")
    assert len(plan.removed["layer"]) == 3
    assert all(name.startswith("layer3.") and name.endswith("conv2") for name in plan.removed["layer"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--method=graph"], "Expected exactly one of remove and ratio, or .* but got none"),
        (["--method=graph", "--method.macs=0.3", "--method.params=0.3"], "Expected a budget in one cost among"),
        ([*OPTIONS, "--method.ignore=['layer9.*']"], r"'layer9.\*' matches none"),
        (["--method=graph", "--method.remove={channel: 3}"], "Expected kinds among block, .* but got 'channel'"),
        (["--method=graph", "--method.remove={layer: 99}"], "Expected at most [0-9]+ units of kind 'layer' to remove"),
        ([*OPTIONS, "--method.search=beam"], "search to be one of one_shot, .* but got 'beam'"),
        ([*OPTIONS, "--method.search=joint"], "for search='joint', .* but got 'magnitude'"),
    ],
)
def test_wrong_options_leave_no_file(
    tmp_path: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(tmp_path, *options) == 2
    assert re.search(f"^prunerecover: error: .*{message}", capsys.readouterr().err, re.MULTILINE)
    assert {file.name for file in tmp_path.iterdir()} == {"recipe.yaml"}
