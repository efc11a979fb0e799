"""`prunerecover plan --method pudding`: sets, router, report and folder, with a tiny Llama and local questions."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from cases.models.language import llama_folder
from cases.models.questions import question_rows, write_rows

from prunerecover import Plan, load_routed
from prunerecover.recipes.cli.main import main
from prunerecover.recipes.plan_methods.pudding_questions import ask
from prunerecover.recipes.tasks.causal_lm import CausalLM

GREEDY = {"max_new_tokens": 3, "do_sample": False, "pad_token_id": 0}


@pytest.fixture
def recipe(tmp_path: Path, own_cache: Path) -> list[str]:
    """The command line up to the method's own arguments."""
    model = str(llama_folder(tmp_path / "llama", num_hidden_layers=6))
    for number, name in enumerate(("first", "second")):
        rows = [{**row, "question": f"w{40 + number} {row['question']}"} for row in question_rows(60)]
        write_rows(tmp_path / name / "train.jsonl", rows)
    tasks = json.dumps({name: str(tmp_path / name) for name in ("first", "second")})
    return [
        "plan",
        *("--model", "CausalLM", "--model.model", model, "--output", str(tmp_path / "plan.json")),
        *("--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false"),
        *("--method", "pudding", "--method.tasks", tasks),
    ]


@pytest.mark.slow
def test_sets_router_and_report(recipe: list[str], tmp_path: Path) -> None:
    small = ["--method.blocks", "2", "--method.calibration_questions", "8", "--method.epochs", "2"]
    assert main([*recipe, *small]) == 0
    plan, page = Plan.load(tmp_path / "plan.json"), (tmp_path / "plan.md").read_text()
    assert len(plan.removed["block"]) == 2
    assert re.search(r"All is judged on \d+ more questions", page)
    assert "Routing is" in page
    assert "| oracle |" in page
    routed = load_routed(tmp_path / "plan.routed")
    assert routed.sets.names[0] == "static"
    assert routed.sets.plans[routed.default].edits == plan.edits
    ahead = "Routing is ahead" in page.split("## By accuracy")[0]
    assert ahead or not routed.routed
    told = f'`load_routed("{tmp_path}/plan.routed", routed={not routed.routed})`'
    assert told in page.split("## The saved model")[1]
    prompts = torch.tensor([[41, 5, 6], [40, 7, 8]])
    assert routed.generate(prompts, **GREEDY).shape == (2, 6)
    assert not (tmp_path / "plan.search").exists()


@pytest.mark.slow
def test_one_set_for_all_tasks(recipe: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = CausalLM(recipe[4])
    with torch.no_grad():
        module.model.lm_head.weight.mul_(2)
    torch.save({"state_dict": module.state_dict()}, tmp_path / "trained.ckpt")
    small = ["--method.blocks", "4", "--method.calibration_questions", "4", "--method.losses", "[likelihood]"]
    assert main([*recipe, *small, "--ckpt_path", str(tmp_path / "trained.ckpt")]) == 0
    assert "plan.routed has nothing to route" in capsys.readouterr().out
    page = (tmp_path / "plan.md").read_text()
    assert page.count("there is nothing to route") == 2
    assert "| no router |" in page
    routed = load_routed(tmp_path / "plan.routed")
    assert torch.equal(routed.model.get_output_embeddings().weight, module.model.lm_head.weight)


def test_no_question_is_in_two_parts_however_it_is_written(tmp_path: Path, own_cache: Path) -> None:
    rows = question_rows(30)
    again = [{**row, "question": f"  {row['question'].upper()} "} for row in rows]
    write_rows(tmp_path / "task" / "train.jsonl", [*rows, *again])
    asked = ask({"task": str(tmp_path / "task")}, {}, 20, 1000, seed=0)
    chosen = asked.chosen.tolist()
    parts = [
        asked.tasks["task"],
        *([q for q, inside in zip(asked.router, chosen, strict=True) if inside is part] for part in (True, False)),
        asked.reported,
    ]
    written = [{" ".join(question.prompt.split()).lower() for question in part} for part in parts]
    assert all(written)
    assert not any(a & b for i, a in enumerate(written) for b in written[:i])


@pytest.mark.parametrize(
    ("questions", "message"),
    [
        (60, "Expected more than 60 questions per task"),
        (59, "Expected questions to train a router on, others to choose by and others to report on"),
    ],
)
def test_too_few_questions_are_refused(tmp_path: Path, own_cache: Path, questions: int, message: str) -> None:
    write_rows(tmp_path / "task" / "train.jsonl", question_rows(60))
    with pytest.raises(ValueError, match=message):
        ask({"task": str(tmp_path / "task")}, {}, questions, 1000, seed=0)


def test_a_network_that_is_no_language_model(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--method", "pudding", "--method.blocks", "1", "--method.tasks", "{}"]
    assert main(["plan", "--config", "digits_vit_depth", *asked]) == 2
    assert "Expected a language model of transformers, but got VisionTransformer" in capsys.readouterr().err
