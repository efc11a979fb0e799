"""`prunerecover plan --method pudding`: sets, router, report and folder, with a tiny Llama and local questions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from cases.depth.interrupted import Interrupts
from cases.models.language import documents, llama_folder, write_jsonl
from cases.models.questions import question_rows, write_rows

from prunerecover import Plan, load_routed
from prunerecover.depth.search.search_store import results_in
from prunerecover.recipes.cli.main import main
from prunerecover.recipes.plan_methods.pudding import PuddingPlan

GREEDY = {"max_new_tokens": 3, "do_sample": False, "pad_token_id": 0}


@pytest.fixture
def recipe(tmp_path: Path, own_cache: Path) -> list[str]:
    """The command line up to the method's own arguments."""
    model = str(llama_folder(tmp_path / "llama", num_hidden_layers=6))
    write_jsonl(tmp_path / "text" / "train.jsonl", documents([16] * 20))
    write_jsonl(tmp_path / "text" / "validation.jsonl", documents([16] * 4))
    for number, name in enumerate(("first", "second")):
        rows = [{**row, "question": f"w{40 + number} {row['question']}"} for row in question_rows(60)]
        write_rows(tmp_path / name / "train.jsonl", rows)
    tasks = json.dumps({name: str(tmp_path / name) for name in ("first", "second")})
    return [
        "plan",
        *("--model", "CausalLM", "--model.model", model, "--data", "TextData", "--data.path", str(tmp_path / "text")),
        *("--data.model", model, "--data.length", "16", "--output", str(tmp_path / "plan.json")),
        *("--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false"),
        *("--method", "pudding", "--method.tasks", tasks, "--method.model", model),
    ]


@pytest.mark.slow
def test_sets_router_and_report(recipe: list[str], tmp_path: Path) -> None:
    small = ["--method.blocks", "2", "--method.calibration_questions", "8", "--method.epochs", "2"]
    assert main([*recipe, *small]) == 0
    plan, page = Plan.load(tmp_path / "plan.json"), (tmp_path / "plan.md").read_text()
    assert len(plan.removed["block"]) == 2
    assert "Routing is" in page
    assert "| oracle |" in page
    routed = load_routed(tmp_path / "plan.routed")
    assert routed.sets.names[0] == "static"
    assert routed.sets.plans[routed.default].edits == plan.edits
    ahead = "Routing is ahead" in page.split("## By accuracy")[0]
    assert ahead or not routed.routed
    prompts = torch.tensor([[41, 5, 6], [40, 7, 8]])
    assert routed.generate(prompts, **GREEDY).shape == (2, 6)
    assert not (tmp_path / "plan.search").exists()


@pytest.mark.slow
def test_an_interrupted_search_says_how_to_go_on(
    recipe: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    interrupts = Interrupts(monkeypatch)
    interrupts.begin(3)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        main([*recipe, "--method.blocks", "2", "--method.calibration_questions", "8"])
    assert f"interrupted, with 3 results in {tmp_path / 'plan.search'}. Run this again to go on" in caplog.text
    assert results_in(tmp_path / "plan.search") == 3


def test_too_few_questions_to_report_on_are_told_before_the_search(
    recipe: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*recipe, "--method.blocks", "2", "--method.calibration_questions", "59"]) != 0
    assert "Expected questions to train a router on, others to choose by and others to report on" in (
        capsys.readouterr().err
    )


def test_no_question_is_in_two_parts_however_it_is_written(tmp_path: Path, own_cache: Path) -> None:
    rows = question_rows(30)
    again = [{**row, "question": f"  {row['question'].upper()} "} for row in rows]
    write_rows(tmp_path / "task" / "train.jsonl", [*rows, *again])
    method = PuddingPlan({"task": str(tmp_path / "task")}, 2, "unused", calibration_questions=20)
    asked = method._asked()
    parts = [
        asked.tasks["task"],
        *(
            [q for q, inside in zip(asked.router, part, strict=True) if inside]
            for part in (asked.chosen, asked.reported, ~(asked.chosen | asked.reported))
        ),
    ]
    written = [{" ".join(question.prompt.split()).lower() for question in part} for part in parts]
    assert all(written)
    assert not any(a & b for i, a in enumerate(written) for b in written[:i])


def test_too_few_questions_are_told(recipe: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*recipe, "--method.blocks", "2", "--method.calibration_questions", "60"]) != 0
    assert "Expected more than 60 questions per task" in capsys.readouterr().err
