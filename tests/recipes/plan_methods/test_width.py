"""`prunerecover plan --method per_cost | fair_pruner`: output, the same decision as `WidthPrune`, and refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
from cases.width.command_line import FAIR, IMAGE, RECIPE, command, dense, run
from safetensors.torch import load_file

from prunerecover import Budget, Plan, apply_plan
from prunerecover.callbacks import WidthPrune
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.cost.macs import count_macs
from prunerecover.recipes.cli.main import main
from prunerecover.recipes.data.digits import DigitsData

VIT = {**RECIPE, "model": {"class_path": "DigitsClassifier", "init_args": {"depth": 2, "embed_dim": 16}}}


@pytest.mark.slow
def test_per_cost_meets_the_budget_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = run(tmp_path, "--method", "per_cost", "--method.macs", "0.3", output="deep/plan")
    network = dense().model
    before = count_macs(network, IMAGE)
    apply_plan(network, plan)
    assert 0.3 <= 1 - count_macs(network, IMAGE) / before < 0.33
    assert plan.made_by.method == "width/per_cost"
    beside = {file.name for file in (tmp_path / "deep").iterdir()}
    assert beside == {"plan", "plan.safetensors", "plan.md", "plan.kept.png", "plan.scores.safetensors"}
    gone, size = len(plan.removed["channel"]), sum(group.size for group in plan.kept_groups)
    assert f"Wrote {tmp_path / 'deep' / 'plan'}: removes {gone} of {size} channels" in capsys.readouterr().out
    page = (tmp_path / "deep" / "plan.md").read_text()
    assert f"{gone} of {size} units go. MACs per sample: {before:,} before, {plan.result.macs:,} after (-3" in page
    assert "Tolerance" not in page
    how = "importance='gate_taylor', channel_order='made good', replace='calibrated'"
    assert f"with `budget={{'macs': 0.3}}, {how}`, seed 0" in page
    assert (tmp_path / "deep" / "plan.kept.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.parametrize("by_recipe", [False, True])
def test_what_may_be_left_is_said_by_an_option_or_by_a_recipe(tmp_path: Path, by_recipe: bool) -> None:
    callback = {"class_path": "WidthPrune", "init_args": {"budget": {"macs": "2M"}, "calibration": 32}}
    recipe = {**RECIPE, "trainer": {**RECIPE["trainer"], "callbacks": [callback]}}
    if by_recipe:
        assert command(tmp_path, recipe=recipe) == 0
        plan = Plan.load(tmp_path / "plan.json")
    else:
        plan = run(tmp_path, "--method=per_cost", "--method.macs=2M")
    assert 1.8e6 < plan.result.macs <= 2.02e6
    assert plan.made_by.arguments["budget"] == {"macs": "2M"}


@pytest.mark.slow
def test_fair_meets_a_budget(tmp_path: Path) -> None:
    options = ["--method.macs=0.5", "--method.importance=[gate_taylor, r_score]", "--method.replace=zero"]
    plan = run(tmp_path, "--method=fair_pruner", *options)
    assert not plan.tensors
    assert 0.47 < plan.result.macs / count_macs(dense().model, IMAGE) <= 0.5
    page = (tmp_path / "plan.md").read_text()
    assert f"Tolerance of Difference: {plan.evidence['tolerance']:.4g}" in page
    found = {name.partition("/")[0] for name in load_file(tmp_path / "plan.scores.safetensors")}
    assert found == {"gate_taylor", "r_score"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The plan removes")  # steps are large
@pytest.mark.parametrize(("method", "given", "number"), [("width", "8", 8), ("fair_pruner", '{"neuron": 4}', 4)])
def test_widths_are_rounded_and_equal_in_all_layers(method: str, given: str, number: int, tmp_path: Path) -> None:
    options = [f"--method={method}", "--method.params=0.2", "--method.kinds=[neuron]"]
    plan = run(tmp_path, *options, f"--method.round_to={given}", "--method.equal_layers=true", recipe=VIT)
    first, second = (group.kept for group in plan.kept_groups)
    assert first == second < 64
    assert first % number == 0
    assert (plan.made_by.arguments["round_to"], plan.made_by.arguments["equal_layers"]) == (json.loads(given), True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        (["--method=width", "--method.macs=0.3"], {"budget": Budget(macs=0.3)}),
        (FAIR, {"allocation": "fair_pruner", "tolerance": 0.2}),
    ],
)
def test_width_prune_decides_alike(tmp_path: Path, options: list[str], arguments: dict[str, Any]) -> None:
    plan = run(tmp_path, *options)
    module, settings = dense(), {**RECIPE["trainer"], "enable_checkpointing": False}
    prune = WidthPrune(**arguments, calibration=48, merge="never")
    pl.Trainer(callbacks=[prune], default_root_dir=tmp_path, **settings).fit(module, datamodule=DigitsData())
    (decided,) = Ledger.of(module).plans.values()
    assert decided.edits == plan.edits
    assert decided.tensors.keys() == plan.tensors.keys()
    assert plan.tensors


def test_help_of_a_method(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["plan", "--method.help", "fair_pruner"])
    assert not stopped.value.code
    shown = capsys.readouterr().out
    assert all(text in shown for text in ("--method.params", "--method.tolerance", "Shell patterns of groups that"))
