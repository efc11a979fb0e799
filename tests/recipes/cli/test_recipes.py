"""Objects in the shipped recipes are built, and recipes run as shipped with small networks and data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import transformers
import yaml
from cases.docs.command_parser import command_parser
from cases.models.language import documents, llama_folder, write_jsonl
from cases.models.questions import question_rows, write_rows
from cases.paths import ROOT
from jsonargparse import ArgumentParser

from prunerecover import Plan, Quality, load_routed
from prunerecover.callbacks.pruning import PruneCallback
from prunerecover.recipes.cli.main import main, recipe_names, recipe_path
from prunerecover.recipes.plan_methods.base import PlanningMethod
from prunerecover.recipes.plan_methods.run import method_of


@pytest.fixture(scope="module", autouse=True)
def _short_names() -> None:
    """Recipes use the short names of classes, known to the command line's parser."""
    command_parser()


@pytest.mark.parametrize("name", recipe_names())
def test_callbacks_and_data_of_every_recipe_are_made(name: str) -> None:
    """Without data or weights, which are on the hub, or in a user's folder."""
    recipe = yaml.safe_load(Path(recipe_path(name)).read_text())
    names = [callback["class_path"] for callback in recipe["trainer"]["callbacks"]]
    maker = ArgumentParser(exit_on_error=False)
    maker.add_argument("--callbacks", type=list[pl.Callback])
    maker.add_subclass_arguments(pl.LightningDataModule, "data")
    given = {"callbacks": recipe["trainer"]["callbacks"], "data": recipe["data"]}
    made = maker.instantiate_classes(maker.parse_object(given))
    assert [type(callback).__name__ for callback in made.callbacks] == names
    assert isinstance(made.data, pl.LightningDataModule)
    for callback in made.callbacks:
        decides = isinstance(callback, PruneCallback) and callback.given.said is None
        if decides and not isinstance(callback.budget, Quality):
            method = method_of(made.callbacks, type(callback).__name__)
            assert isinstance(method, PlanningMethod)
            for what in ("config", "budget", "calibration"):
                assert getattr(method, what) == getattr(callback, what)


BUDGETS: dict[str, dict[str, Any]] = {
    "resnet56_depth_cifar10": {"remove": {"layer": 2}},
    "convnext_tiny_depth_imagenet": {"budget": {"macs": 0.03}},
}
NETWORKS: dict[str, dict[str, Any]] = {
    "resnet56_depth_cifar10": {"model": "cifar_resnet20", "model_kwargs": {}},
    "convnext_tiny_depth_imagenet": {
        "model": "convnext_atto",
        "pretrained": False,
        "model_kwargs": {"dims": [8, 8, 16, 16], "depths": [1, 1, 2, 1], "num_classes": 4},
        "mixup": 0.0,
        "cutmix": 0.0,
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_a_small_fit_of_the_recipe(name: str, tmp_path: Path, parquet_folder: Path) -> None:
    recipe = yaml.safe_load((ROOT / f"configs/{name}.yaml").read_text())
    recipe["trainer"] |= {"max_epochs": 1, "limit_train_batches": 2, "limit_val_batches": 1, "accelerator": "cpu"}
    recipe["trainer"] |= {"devices": 1, "precision": "32-true", "logger": False, "default_root_dir": str(tmp_path)}
    recipe["trainer"]["callbacks"][0]["init_args"] |= {**BUDGETS[name], "calibration": 8}
    recipe["model"]["init_args"] |= NETWORKS[name]
    recipe["data"]["init_args"] |= {"path": str(parquet_folder), "model": NETWORKS[name]["model"], "batch_size": 4}
    recipe["data"]["init_args"] |= {"num_workers": 0, "val_fraction": 0.0}
    recipe["data"]["init_args"].pop("test_split", None)
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    assert main(["fit", "--config", str(tmp_path / "recipe.yaml")]) == 0
    (plan,) = tmp_path.rglob("pruned/plan.json")
    assert Plan.load(plan).removed


# Recipes of language models, with a tiny Llama and local data instead of the hub's.


TEXTS = {path.stem: path.read_text() for path in sorted((ROOT / "configs").glob("*.yaml"))}
ROUTED = [name for name, text in TEXTS.items() if "RoutedLoRARecover" in text]
LANGUAGE = [name for name, text in TEXTS.items() if "class_path: CausalLM" in text and name not in ROUTED]


@pytest.fixture
def small(tmp_path: Path, own_cache: Path) -> dict[str, dict[str, Any]]:
    """Return the replacements in a recipe."""
    for name, rows in (("train", 40), ("validation", 12)):
        write_jsonl(tmp_path / "TextData" / f"{name}.jsonl", documents([16] * rows))
        write_rows(tmp_path / "ChoiceData" / f"{name}.jsonl", question_rows(rows))
    model = str(llama_folder(tmp_path / "llama"))
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return {
        "trainer": {"limit_train_batches": 2, "accelerator": "cpu", "default_root_dir": str(tmp_path), **quiet},
        "model": {"model": model},
        "data": {"name": None, "num_workers": 0},
        "TextData": {"path": str(tmp_path / "TextData"), "length": 16},
        "ChoiceData": {"path": str(tmp_path / "ChoiceData")},
    }


def written(name: str, small: Any, folder: Path) -> str:
    recipe = yaml.safe_load((ROOT / f"configs/{name}.yaml").read_text())
    recipe["trainer"] |= small["trainer"]
    for part in ("model", "data"):
        recipe[part]["init_args"] |= small[part]
    recipe["data"]["init_args"] |= small[recipe["data"]["class_path"]]
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    return str(folder / "recipe.yaml")


@pytest.mark.slow
@pytest.mark.parametrize("name", LANGUAGE)
def test_a_small_fit_of_a_language_recipe(name: str, small: Any, tmp_path: Path) -> None:
    assert main(["fit", "--config", written(name, small, tmp_path)]) == 0
    (folder,) = tmp_path.rglob("pruned")
    assert set(Plan.load(folder / "plan.json").removed) == {"block"}
    opened, report = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report
    assert 0 < len(opened.model.layers) < 4


@pytest.mark.slow
@pytest.mark.parametrize("name", ROUTED[:1])
def test_sets_are_found_and_recovered(name: str, small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number, task in enumerate(("first", "second")):
        rows = [{**row, "question": f"w{40 + number} {row['question']}"} for row in question_rows(60)]
        write_rows(tmp_path / task / "train.jsonl", rows)
    recipe = written(name, small, tmp_path)
    asked = {"blocks": "2", "calibration_questions": "8", "epochs": "1"}
    method = [word for key, value in asked.items() for word in (f"--method.{key}", value)]
    tasks = ["--method.tasks", json.dumps({task: str(tmp_path / task) for task in ("first", "second")})]
    command = ["--method", "pudding", *method, *tasks, "--output", "router.json"]
    assert main(["plan", "--config", recipe, *command]) == 0
    assert main(["fit", "--config", recipe]) == 0
    (folder,) = tmp_path.rglob("routed")
    assert {len(blocks) for blocks in load_routed(folder).sets.blocks} == {2}


def test_a_missing_text_is_one_line(small: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = written("smollm2_depth_lora", small, tmp_path)
    assert main(["fit", "--config", recipe, "--data.path", str(tmp_path / "none")]) == 2
    assert "Expected data at" in capsys.readouterr().err
