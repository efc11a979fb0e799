"""Any callback of a recipe is addressed by its name on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

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


@pytest.mark.parametrize("option", ["DepthPrune.0.remove", "DepthPrune.0.init_args.remove"])
@pytest.mark.parametrize("joined", [True, False])
def test_a_value_is_replaced(recipe: str, option: str, joined: bool) -> None:
    name, value = f"--trainer.callbacks.{option}", "{attention: 2}"
    given = [f"{name}={value}"] if joined else [name, value]
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
        ("DepthPrune.remove", "Expected one DepthPrune in the recipe, but it has 2. Say which: .*DepthPrune.0.remove"),
        ("WidthPrune.budget", r"of the recipe \(DepthPrune, DepthPrune, PruneReport\), but got 'WidthPrune.budget'"),
        ("DepthPrune.2.remove", "but got 'DepthPrune.2.remove'"),
    ],
)
def test_who_is_meant_must_be_clear(recipe: str, option: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        with_callback_options(["fit", "--config", recipe, f"--trainer.callbacks.{option}", "{}"])


def test_a_value_must_follow(recipe: str) -> None:
    with pytest.raises(ValueError, match="Expected a value after --trainer.callbacks.PruneReport.dir, but got none"):
        with_callback_options(["fit", "--config", recipe, "--trainer.callbacks.PruneReport.dir"])


def test_a_shipped_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The first of four callbacks; a number is the epoch at which its schedule starts."""
    monkeypatch.chdir(tmp_path)
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
