"""Refusals of methods on the command line are a single line, and leave no file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cases.width.command_line import command

MACS = "--method.macs=0.3"
NOTHING = "Expected exactly one of remove and ratio, or .* but got none"
TWO_COSTS, ONE_COST = [MACS, "--method.params=0.3"], "Expected a budget in one cost among"
LAYERS = ["--method=graph", "--method.remove={layer: 3}", "--method.importance=magnitude"]
UNKNOWN, MATCHES_NONE = "--method.ignore=['layer9.*']", r"'layer9.\*' matches none"
JOINT = ["--method=joint", MACS, "--method.kinds=[layer, channel]"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--method=graph"], NOTHING),
        (["--method=graph", *TWO_COSTS], ONE_COST),
        ([*LAYERS, UNKNOWN], MATCHES_NONE),
        (["--method=graph", "--method.remove={channel: 3}"], "Expected kinds among block, .* but got 'channel'"),
        (["--method=graph", "--method.remove={layer: 99}"], "Expected at most [0-9]+ units of kind 'layer' to remove"),
        ([*LAYERS, "--method.search=beam"], "search to be one of program, one_shot, .* but got 'beam'"),
        ([*LAYERS, "--method.search=greedy"], "for search='greedy', .* but got 'magnitude'"),
        (["--method=joint"], NOTHING),
        ([*JOINT, UNKNOWN], MATCHES_NONE),
        ([*JOINT, "--method.trials.epochs=2"], "Expected no trials, as splits are compared by their outputs"),
        (["--method=per_cost"], r"Expected a budget, such as Budget\(macs=0.3\)"),
        (["--method=per_cost", *TWO_COSTS], ONE_COST),
        (["--method=per_cost", "--method.latency=0.3", "--method.clock=sundial"], "clock to be one of torch, compile"),
        (["--method=per_cost", "--method.latency=5 msec"], "one of the units us, ms, s, but got '5 msec'"),
        (["--method=per_cost", "--method.macs=0"], "Expected a budget or a tolerance by which something goes"),
        (["--method=per_cost", "--method.macs=0.99"], "at most .* can go"),
        (["--method=per_cost", MACS, UNKNOWN], MATCHES_NONE),
        (["--method=per_cost", MACS, "--target=other"], "other"),
        (["--method=fair_pruner"], "Expected a budget or a tolerance, and not both"),
        (["--method=fair_pruner", MACS, "--method.tolerance=0.1"], "Expected a budget or a tolerance"),
        (["--method=fair_pruner", "--method.tolerance=1.2"], "Expected a tolerance between 0 and 1, but got 1.2"),
        (["--method=fair_pruner", MACS, "--method.importance=[luck, r_score]"], "importance to be one of .*luck"),
        (["--method=sites", "--method.kinds=[filter]"], "Expected kinds among block"),
        (["--method=boundary", "--method.n_remove=2"], "a supported network .* inside ImageClassifier, but found none"),
    ],
)
def test_wrong_options_leave_no_file(
    tmp_path: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(tmp_path, *options) == 2
    assert re.search(f"^prunerecover: error: .*{message}", capsys.readouterr().err, re.MULTILINE)
    assert {file.name for file in tmp_path.iterdir()} == {"recipe.yaml"}
