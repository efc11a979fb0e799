"""Any callback of a recipe has options by its name on the command line, and decides the plan of `plan`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from prunerecover import Plan
from prunerecover.recipes.cli.callback_options import with_callback_options
from prunerecover.recipes.cli.main import main, recipe_path


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    first = {"class_path": "prunerecover.callbacks.DepthPrune", "init_args": {"remove": {"block": 1}}}
    callbacks = [first, {"class_path": "DepthPrune"}, "PruneReport"]
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump({"trainer": {"callbacks": callbacks, "max_epochs": 2}}))
    return str(tmp_path / "recipe.yaml")


def callbacks_of(arguments: list[str]) -> list[dict[str, Any]]:
    (given,) = [a for a in with_callback_options(arguments) if a.startswith("--trainer.callbacks=")]
    found: list[dict[str, Any]] = json.loads(given.partition("=")[2])
    return found


@pytest.mark.parametrize(
    "given",
    [
        ["--trainer.callbacks.DepthPrune.0.remove={attention: 2}"],
        ["--trainer.callbacks.DepthPrune.0.init_args.remove", "{attention: 2}"],
    ],
)
def test_a_value_is_replaced(recipe: str, given: list[str]) -> None:
    first, second, third = callbacks_of(["fit", "--config", recipe, *given])
    assert first["init_args"] == {"remove": {"attention": 2}}
    assert (second, third) == ({"class_path": "DepthPrune"}, {"class_path": "PruneReport"})


def test_an_entry_is_added(recipe: str) -> None:
    given = ["--trainer.callbacks.DepthPrune.1.schedule.start", "3", "--trainer.callbacks.PruneReport.dir=out"]
    first, second, third = callbacks_of(["fit", f"--config={recipe}", *given])
    assert first["init_args"] == {"remove": {"block": 1}}
    assert second["init_args"] == {"schedule": {"start": 3}}
    assert third["init_args"] == {"dir": "out"}


def test_what_lightning_reads_itself_stays(recipe: str) -> None:
    arguments = ["fit", "--config", recipe, "--trainer.callbacks+=LoRARecover", "--trainer.callbacks.rank", "8", "-c"]
    assert with_callback_options(arguments) == arguments


def test_later_options_add_to_the_list(recipe: str) -> None:
    given = ["--trainer.callbacks.PruneReport.dir=out", "--trainer.callbacks+=LoRARecover"]
    found = with_callback_options(["fit", "--config", recipe, *given])
    assert found[3].startswith("--trainer.callbacks=[")
    assert found[4:] == given[1:]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("DepthPrune.remove={}", "Expected one DepthPrune in the recipe, but it has 2. Say which: .*DepthPrune.0.rem"),
        ("WidthPrune.budget={}", r"the recipe \(DepthPrune, DepthPrune, PruneReport\), but got 'WidthPrune.budget'"),
        ("DepthPrune.2.remove={}", "but got 'DepthPrune.2.remove'"),
        ("PruneReport.dir", "Expected a value after --trainer.callbacks.PruneReport.dir, but got none"),
    ],
)
def test_who_is_meant_must_be_clear(recipe: str, option: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        with_callback_options(["fit", "--config", recipe, f"--trainer.callbacks.{option}"])


def test_a_shipped_recipe(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """DepthPrune is the first of four callbacks; a number is the epoch at which its schedule starts."""
    given = ["--trainer.callbacks.DepthPrune.remove", '{"block": 1}', "--trainer.callbacks.DepthPrune.schedule=30"]
    with pytest.raises(SystemExit) as stopped:
        main(["fit", "--config", "digits_vit_depth", *given, "--print_config"])
    assert not stopped.value.code
    before = yaml.safe_load(Path(recipe_path("digits_vit_depth")).read_text())["trainer"]["callbacks"]
    first, *others = yaml.safe_load(capsys.readouterr().out)["trainer"]["callbacks"]
    assert first["init_args"]["remove"] == {"block": 1}
    assert first["init_args"]["schedule"] == 30
    names = [callback["class_path"].rpartition(".")[2] for callback in others]
    assert names == [callback["class_path"] for callback in before[1:]]


QUICK = ["--trainer.logger=false", "--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false"]
SMALL = ["--model.depth=3", "--model.embed_dim=16", "--model.num_heads=2"]


@pytest.mark.parametrize(
    ("recipe", "options", "message"),
    [
        ("digits_vit_lora", [], "Expected one pruning callback in the recipe .*, but got DepthPrune and Width"),
        ("digits_vit_depth", ["--callback=Prune"], "callback Prune in the recipe to plan for, but got DepthPrune"),
        ("digits_vit_until_quality_falls", [], "Quality.*step=0.1, schedule=.*which finds out in a fit how much"),
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
def test_a_callback_plans_as_its_method(in_tmp: Path, recipe: str, options: list[str], alias: list[str]) -> None:
    for file, how in (("recipe", options), ("method", alias)):
        command = ["plan", "--config", recipe, *SMALL, *QUICK, "--calibration=32", f"--output={file}.json"]
        assert main([*command, *how]) == 0
    ours, theirs = (Plan.load(in_tmp / f"{file}.json") for file in ("recipe", "method"))
    assert ours.edits == theirs.edits
    assert ours.made_by == theirs.made_by
    assert ours.tensors.keys() == theirs.tensors.keys()
    assert all(torch.equal(ours.tensors[name], theirs.tensors[name]) for name in ours.tensors)
