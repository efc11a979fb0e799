"""`prunerecover plan --method boundary`: its files, and the same result after an interruption or with shared work."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from cases.paths import ROOT
from lightning.pytorch import seed_everything

from prunerecover import Plan, apply_plan, merge
from prunerecover.boundary.designs import axes_and_staircase
from prunerecover.boundary.plan_boundary import PUBLISHED
from prunerecover.cost.macs import count_macs
from prunerecover.recipes.cli.main import main
from prunerecover.recipes.plan_methods.boundary import page_of
from prunerecover.recipes.tasks.digits_classifier import DigitsClassifier

QUICK = ["--trainer.logger=false", "--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false"]
SMALL = ["--model.depth=3", "--model.embed_dim=16", "--model.num_heads=2", "--trainer.accelerator=cpu"]
# The network learns too little here for its accuracy to separate trials, unlike its loss, as a number up to 100.
TRIALS = ["--model.warmup_epochs=0", "--method.trials.metric=val_loss", "--method.trials.scale=10"]
COMMAND = ["plan", "--config", "digits_vit_depth", *SMALL, *QUICK, "--calibration", "32"]
RUNS = 5


def arguments(
    output: Path, method: str = "boundary", batches: int = 16, budget: Sequence[str] = ("--method.n_remove=3",)
) -> list[str]:
    trainer = ["--method.trials.trainer", json.dumps({"limit_train_batches": batches})]
    return [*COMMAND, "--method", method, *TRIALS, *budget, *trainer, "--output", str(output)]


def lines_of(folder: Path, name: str = "plan.trials.jsonl") -> list[dict[str, Any]]:
    file = folder / name
    return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []


def accuracies(lines: list[dict[str, Any]]) -> dict[str, float]:
    return {line["key"]: line["accuracy"] for line in lines}


def split_of_line(line: dict[str, Any]) -> tuple[int, int]:
    return line["removed"].get("attention", 0), line["removed"].get("activation", 0)


def split_of(plan: Plan) -> tuple[int, int]:
    return len(plan.removed.get("attention", ())), len(plan.removed.get("activation", ()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an undisturbed search in a single process."""
    found = tmp_path_factory.mktemp("search")
    assert main(arguments(found / "plan.json")) == 0
    return found


@pytest.mark.slow
def test_a_search_leaves_plan_page_figure_and_trials(folder: Path) -> None:
    left = {file.name for file in folder.iterdir()}
    assert left >= {"plan.json", "plan.md", "plan.map.png", "plan.trials.jsonl"}
    plan, lines = Plan.load(folder / "plan.json"), lines_of(folder)
    assert len(lines) == RUNS
    assert len({line["accuracy"] for line in lines}) == RUNS
    told = [(trial["attention"], trial["activation"], trial["accuracy"]) for trial in plan.evidence["trials"]]
    assert told == [(*split_of_line(line), line["accuracy"]) for line in lines]
    assert plan.made_by.method == "boundary/output_divergence"
    cost = plan.evidence["search"]
    assert (cost["trials"], cost["trial_seconds"]) == (RUNS, sum(line["seconds"] for line in lines))
    assert cost["seconds"] > cost["trial_seconds"]
    page = (folder / "plan.md").read_text()
    attention, activation = split_of(plan)
    assert f"Asked for: n_remove=3. Picked: {attention} attentions and {activation} activations." in page
    assert f"Predicted accuracy after a short recovery: {plan.evidence['predicted']['accuracy']:.2f}%" in page
    assert f"Planned: {attention} attentions and {activation} activations removed (" in page
    best = max(line["accuracy"] for line in lines)
    rows = [row for row in page.splitlines() if row.startswith("| ") and row[2].isdigit()]
    assert len(rows) == RUNS
    assert f" {best:.2f} |" in rows[0]
    assert "![Accuracy map](plan.map.png)" in page
    assert (folder / "plan.map.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_page_says_when_the_pick_was_not_enough(folder: Path) -> None:
    plan = Plan.load(folder / "plan.json")
    predicted = {**plan.evidence["predicted"], "attention": 0, "activation": 0}
    page = page_of(plan.model_copy(update={"evidence": {**plan.evidence, "predicted": predicted}}), [], "plan.map.png")
    assert "Picked: 0 attentions and 0 activations." in page
    assert "The pick saves less than was asked for; this is the nearest split that saves enough." in page
    assert "nearest split" not in (folder / "plan.md").read_text()


@pytest.mark.slow
def test_a_share_of_macs(tmp_path: Path) -> None:
    assert main(arguments(tmp_path / "plan.json", budget=("--method.macs=0.3", "--method.replace=zero"))) == 0
    plan = Plan.load(tmp_path / "plan.json")
    assert plan.edits
    assert len(lines_of(tmp_path)) >= 2
    seed_everything(1, verbose=False)
    module, image = DigitsClassifier(depth=3, embed_dim=16, num_heads=2), torch.zeros(1, 1, 8, 8)
    dense = count_macs(module.model, image)
    apply_plan(module.model, plan)
    merge(module.model)
    assert count_macs(module.model, image) <= 0.7 * dense


@pytest.mark.slow
def test_the_published_search(tmp_path: Path) -> None:
    """All its runs, gate gradients with the recipe's own labels, identities."""
    assert main(arguments(tmp_path / "plan.json", "boundary_dpt", batches=4)) == 0
    plan = Plan.load(tmp_path / "plan.json")
    assert sum(split_of(plan)) == 3
    assert {edit.leaves for edit in plan.edits} == {"identity"}
    assert plan.made_by.method == "boundary/gate_gradient"
    assert plan.made_by.arguments.items() >= {k: v for k, v in PUBLISHED.items() if k != "importance"}.items()
    runs = [split_of_line(line) for line in lines_of(tmp_path)]
    assert runs == list(axes_and_staircase(3, 3))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--method.n_keep=1"], "exactly one of n_remove and n_keep"),
        (["--method.macs=0.2"], "exactly one of n_remove, n_keep and a share of macs"),
        (["--method.trials.scale=1000"], "'val_loss' times scale=1000 to be a percentage, but the module logged"),
    ],
)
def test_no_file_is_left(tmp_path: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments(tmp_path / "plan.json"), *options]) == 2
    assert re.search(f"^prunerecover: error: .*{message}", capsys.readouterr().err, re.MULTILINE)
    assert not list(tmp_path.iterdir())


def same_pick(folder: Path, other: Path) -> None:
    plan, expected = Plan.load(other / "plan.json"), Plan.load(folder / "plan.json")
    assert plan.edits == expected.edits
    assert plan.sidecar == expected.sidecar
    assert plan.evidence["trials"] == expected.evidence["trials"]
    assert plan.evidence["predicted"] == expected.evidence["predicted"]


@pytest.mark.slow
def test_an_interrupted_search_goes_on_and_finds_the_same(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    step, trials = DigitsClassifier.training_step, tmp_path / "plan.trials.jsonl"

    @functools.wraps(step)
    def interrupted(*given: Any) -> torch.Tensor:
        if trials.is_file():
            raise KeyboardInterrupt
        return step(*given)

    with monkeypatch.context() as patch:
        patch.setattr(DigitsClassifier, "training_step", interrupted)
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            main(arguments(tmp_path / "plan.json"))
    assert f"interrupted, with 1 trial in {trials}. Run this again to go on" in caplog.text
    assert not (tmp_path / "plan.json").exists()
    (done,) = trials.read_text().splitlines()
    assert main(arguments(tmp_path / "plan.json")) == 0
    assert trials.read_text().startswith(done)
    assert len(lines_of(tmp_path)) == RUNS
    assert accuracies(lines_of(tmp_path)) == accuracies(lines_of(folder))
    same_pick(folder, tmp_path)


@pytest.mark.slow
def test_two_ranks_share_the_trials_and_write_one_plan(folder: Path, tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "PL_", "MASTER_", "LOCAL_RANK"))}
    environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "prunerecover", *arguments(tmp_path / "plan.json"), "--trainer.devices=2"]
    command += ["--trainer.strategy=ddp"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-6000:]
    assert done.stdout.count("Wrote ") == 1
    first, second = lines_of(tmp_path), lines_of(tmp_path, "plan.trials.1.jsonl")
    assert len(first) + len(second) == RUNS
    assert [split_of_line(line) for line in second] == [(2, 1)]  # of the three that go out at once
    assert accuracies(first) | accuracies(second) == accuracies(lines_of(folder))
    same_pick(folder, tmp_path)
