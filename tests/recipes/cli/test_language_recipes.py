"""The recipes of language models run as shipped, with a tiny Llama and local data instead of the hub's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from cases.models.language import documents, llama_folder, write_jsonl
from cases.models.questions import question_rows, write_rows
from cases.paths import ROOT
from cases.sampling import one_in

from prunerecover import Plan, load_routed
from prunerecover.recipes.cli.main import main

TEXTS = {path.stem: path.read_text() for path in sorted((ROOT / "configs").glob("*.yaml"))}
ROUTED = [name for name, text in TEXTS.items() if "RoutedLoRARecover" in text]
NAMES = [name for name, text in TEXTS.items() if "class_path: CausalLM" in text and name not in ROUTED]


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


def written(name: str, small: dict[str, dict[str, Any]], folder: Path) -> str:
    recipe = yaml.safe_load((ROOT / f"configs/{name}.yaml").read_text())
    recipe["trainer"] |= small["trainer"]
    for part in ("model", "data"):
        recipe[part]["init_args"] |= small[part]
    recipe["data"]["init_args"] |= small[recipe["data"]["class_path"]]
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    return str(folder / "recipe.yaml")


@pytest.mark.slow
@pytest.mark.parametrize("name", one_in(3, NAMES))
def test_a_small_fit_of_the_recipe(name: str, small: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    import transformers

    assert main(["fit", "--config", written(name, small, tmp_path)]) == 0
    (folder,) = tmp_path.rglob("pruned")
    assert set(Plan.load(folder / "plan.json").removed) == {"block"}
    opened, report = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report
    assert 0 < len(opened.model.layers) < 4


@pytest.mark.slow
@pytest.mark.parametrize("name", one_in(2, ROUTED))
def test_sets_are_searched_and_recovered_together(
    name: str, small: dict[str, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_missing_text_is_one_line(
    small: dict[str, dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = written("smollm2_depth_lora", small, tmp_path)
    assert main(["fit", "--config", recipe, "--data.path", str(tmp_path / "none")]) == 2
    assert "Expected data at" in capsys.readouterr().err
