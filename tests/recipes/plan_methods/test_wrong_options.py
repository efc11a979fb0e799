"""Refusals of methods on the command line are a single line, and leave no file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cases.width.command_line import command

MACS = "--method.macs=0.3"
LAYERS = ["--method=graph", "--method.remove={layer: 3}", "--method.importance=magnitude"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--method=graph", "--method.remove={channel: 3}"], "Expected kinds among block, .* but got 'channel'"),
        ([*LAYERS, "--method.ignore=['layer9.*']"], r"'layer9.\*' matches none"),
        (["--method=joint", MACS, "--method.trials.epochs=2"], "no trials, as splits are compared by their outputs"),
        (["--method=per_cost", MACS, "--method.params=0.3"], "Expected a budget in one cost among"),
        (["--method=per_cost", "--method.latency=5 msec"], "one of the units us, ms, s, but got '5 msec'"),
        (["--method=per_cost", "--method.macs=0"], "Expected a budget or a tolerance by which something goes"),
        (["--method=per_cost", MACS, "--target=other"], "other"),
        (["--method=fair_pruner", "--method.tolerance=1.2"], "Expected a tolerance between 0 and 1, but got 1.2"),
        (["--method=fair_pruner", MACS, "--method.allocation=uniform"], "no allocation .* got 'uniform'. Use the"),
        (["--method=sites", "--method.kinds=[filter]"], "Expected kinds among block"),
        (["--method=boundary", "--method.n_remove=2"], "a supported network .* inside ImageClassifier, but found none"),
    ],
)
def test_no_file_is_left(tmp_path: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(tmp_path, *options) == 2
    assert re.search(f"^prunerecover: error: .*{message}", capsys.readouterr().err, re.MULTILINE)
    assert {file.name for file in tmp_path.iterdir()} == {"recipe.yaml"}
