"""`prunerecover plan --method depth`: what it writes, by each importance, and after an interrupt."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cases.depth.interrupted import Interrupts
from cases.sampling import one_in
from lightning.pytorch import seed_everything

from prunerecover import Plan, apply_plan
from prunerecover.recipes.cli.main import main
from prunerecover.recipes.tasks.digits_classifier import DigitsClassifier

SMALL = ["--model.depth=3", "--model.embed_dim=16", "--model.num_heads=2"]
QUIET = ["--trainer.logger=false", "--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false"]
COMMAND = ["plan", "--config", "digits_vit_depth", *SMALL, *QUIET, "--method=depth", "--calibration=32"]


def test_the_plan_applies(in_tmp: Path) -> None:
    budget = ["--method.remove", '{"activation": 1, "attention": 1}']
    assert main([*COMMAND, *budget, "--output", "plans/plan.json"]) == 0
    plan = Plan.load(in_tmp / "plans" / "plan.json")
    assert {kind: len(units) for kind, units in plan.removed.items()} == {"activation": 1, "attention": 1}
    assert plan.made_by.method == "depth/output_divergence"
    seed_everything(1, verbose=False)
    assert apply_plan(DigitsClassifier(depth=3, embed_dim=16, num_heads=2).model, plan)


@pytest.mark.parametrize("importance", one_in(3, ["gate_gradient", "taylor", "magnitude"]))
def test_another_importance(in_tmp: Path, importance: str) -> None:
    assert main([*COMMAND, '--method.remove={"attention": 1}', f"--method.importance={importance}"]) == 0
    assert json.loads((in_tmp / "plan.json").read_text())["made_by"]["method"] == f"depth/{importance}"


@pytest.mark.slow
def test_an_interrupted_search_goes_on(
    in_tmp: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    command = [*COMMAND, '--method.remove={"attention": 1}', "--output=plan.json"]
    interrupts = Interrupts(monkeypatch)
    interrupts.begin(1)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        main(command)
    assert "interrupted, with 1 result in plan.search. Run this again to go on" in caplog.text
    interrupts.begin()
    assert main(command) == 0
    rest = interrupts.computed
    assert not (in_tmp / "plan.search").exists()
    interrupts.begin()
    assert main(command) == 0
    assert interrupts.computed == rest + 1
