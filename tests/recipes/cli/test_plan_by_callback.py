"""`prunerecover plan` without a method: the pruning callback of the recipe decides."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from prunerecover import Plan
from prunerecover.recipes.cli.main import main

QUICK = ["--trainer.logger=false", "--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false"]
SMALL = ["--model.depth=3", "--model.embed_dim=16", "--model.num_heads=2"]


@pytest.mark.parametrize(
    ("recipe", "options", "message"),
    [
        (
            "digits_vit_lora",
            [],
            "Expected one pruning callback in the recipe to plan for, but got DepthPrune and Width",
        ),
        (
            "digits_vit_depth",
            ["--callback=Prune"],
            "pruning callback Prune in the recipe to plan for, but got DepthPrune",
        ),
        (
            "digits_vit_until_quality_falls",
            [],
            "Quality.*step=0.1, schedule=.*which finds out in a fit how much goes",
        ),
        ("digits_vit_depth", ["--trainer.callbacks=null"], "in the recipe to plan for, but got none. Name one"),
        (
            "digits_vit_depth",
            ['--trainer.callbacks={"class_path": "DepthPrune", "init_args": {"plan": "made.json"}}'],
            r"with a budget to plan for, but got DepthPrune\(plan='made.json'\), whose plan says already what goes",
        ),
    ],
)
def test_a_recipe_without_a_callback_that_decides_is_an_error(
    in_tmp: Path, capsys: pytest.CaptureFixture[str], recipe: str, options: list[str], message: str
) -> None:
    assert main(["plan", "--config", recipe, *SMALL, *QUICK, *options]) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not list(in_tmp.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "options", "alias"),
    [
        (
            "digits_vit_depth",
            ["--trainer.callbacks.DepthPrune.search=one_shot"],
            ["--method=depth", '--method.remove={"activation": 3, "attention": 2}', "--method.search=one_shot"],
        ),
        ("digits_vit_lora", ["--callback=WidthPrune"], ["--method=width", "--method.macs=0.2"]),
    ],
)
def test_the_callback_of_a_recipe_plans_as_the_method_of_its_name(
    in_tmp: Path, recipe: str, options: list[str], alias: list[str]
) -> None:
    for file, how in (("recipe", options), ("method", alias)):
        command = ["plan", "--config", recipe, *SMALL, *QUICK, "--calibration=32", f"--output={file}.json"]
        assert main([*command, *how]) == 0
    ours, theirs = (Plan.load(in_tmp / f"{file}.json") for file in ("recipe", "method"))
    assert ours.edits == theirs.edits
    assert ours.made_by == theirs.made_by
    assert ours.tensors.keys() == theirs.tensors.keys()
    assert all(torch.equal(ours.tensors[name], theirs.tensors[name]) for name in ours.tensors)
